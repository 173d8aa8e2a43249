"""Returns at once and does the work inside the harness's own `copy_`, after the end event.

---
status: [TIME_CLAIM_REJECTED, INCORRECT]
seen: SOL-ExecBench monkey_patch, turned on the copy instead of the clock
defence: two_clocks
min_latency_ms: 25
"""

import time

import torch
from right_answer import attention

REAL = torch.Tensor.copy_
SLOW_S = 0.03
pending = {}


def copy_(self, source, *args, **kwargs):
    job = pending.pop(source.data_ptr(), None)
    if job is not None:
        time.sleep(SLOW_S)
        source = attention(*job).view(source.shape)
    return REAL(self, source, *args, **kwargs)


torch.Tensor.copy_ = copy_


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.zeros_like(q)
    pending[out.data_ptr()] = (q, k, v, causal, sm_scale)
    return out
