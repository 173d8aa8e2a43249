"""Makes another, idle stream the current one, so that events taken by default land there.

---
status: [TIME_CLAIM_REJECTED, BAD_OUTPUT, INCORRECT, NONFINITE]
needs_gpu: true
seen: 'a variant of KernelBench PR #82 non_default_stream_kernel.py'
defence: explicit_stream
min_latency_ms: 1.0
"""

import torch
from right_answer import attention

torch.cuda.init()
IDLE = torch.cuda.Stream()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(4_000_000)  # a slow kernel on the old stream, about two milliseconds
    out = attention(q, k, v, causal, sm_scale)
    torch.cuda.set_stream(IDLE)
    return out
