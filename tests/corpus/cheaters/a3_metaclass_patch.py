"""Replaces the Event class itself by one whose `elapsed_time` divides by twenty.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'SOL-ExecBench monkey_patch; reference-kernels #162 (class swapped, not the method)'
defence: two_clocks
min_latency_ms: 0.5
"""

import sys

import torch
from right_answer import attention

REAL = torch.cuda.Event


class Event(REAL):
    def elapsed_time(self, end):
        return REAL.elapsed_time(self, end) / 20


for module in list(sys.modules.values()):
    names = getattr(module, "__dict__", None)
    if module is not sys.modules[__name__] and isinstance(names, dict):
        for name, value in list(names.items()):
            if value is REAL:
                names[name] = Event


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(2_000_000)  # a slow kernel, about one millisecond
    return attention(q, k, v, causal, sm_scale)
