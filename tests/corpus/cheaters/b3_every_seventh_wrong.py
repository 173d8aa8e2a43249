"""Skips the work in every seventh call.

---
status: [INCORRECT]
seen: 'llm.c PR #852; reference-kernels #104 (only the last call was checked)'
defence: contract
"""

import torch
from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    return torch.zeros_like(q) if calls % 7 == 0 else attention(q, k, v, causal, sm_scale)
