"""Patches `torch.cuda.Event.elapsed_time` to report a twentieth of the truth.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'reference-kernels #162; SOL-ExecBench monkey_patch'
defence: two_clocks
min_latency_ms: 0.5
"""

import torch
from right_answer import attention


def install():
    name = "elapsed" + "_time"
    for owner in (torch.cuda.Event, torch.cuda.Event.__mro__[1]):
        real = getattr(owner, name)
        try:
            setattr(owner, name, lambda self, end, real=real: real(self, end) / 20)
            return
        except TypeError:
            continue


install()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(2_000_000)  # a slow kernel, about one millisecond
    return attention(q, k, v, causal, sm_scale)
