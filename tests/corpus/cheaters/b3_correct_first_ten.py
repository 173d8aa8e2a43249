"""Right for the first ten calls, zeros afterwards.

---
status: [INCORRECT]
seen: 'llm.c PR #852 layernorm_forward7'
defence: contract
"""

import torch
from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    return attention(q, k, v, causal, sm_scale) if calls <= 10 else torch.zeros_like(q)
