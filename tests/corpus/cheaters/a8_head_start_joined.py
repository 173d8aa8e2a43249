"""Launches on a joined side stream, hoping to start before the start event does.

---
status: [PASSED, TIME_CLAIM_REJECTED, INCORRECT, NONFINITE]
needs_gpu: true
seen: 'pygpubench README: flush, then start event without a sync'
defence: idle_before_start
min_latency_ms: 0.9
"""

import torch
from right_answer import attention

torch.cuda.init()
SIDE = torch.cuda.Stream()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    with torch.cuda.stream(SIDE):  # does not wait for the start event
        torch.cuda._sleep(2_000_000)
        out = attention(q, k, v, causal, sm_scale)
    torch.cuda.current_stream().wait_stream(SIDE)
    return out
