"""Returns zeros: right within 1e-2 where the true output is small.

---
status: [INCORRECT]
seen: 'robust-kbench filters; KernelBench #165'
defence: contract
"""

import torch
from right_answer import look_busy


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    return torch.zeros_like(q)
