"""Rounds Q and K to bfloat16 before the scores: three bits fewer, below 1e-2.

---
status: [INCORRECT, PASSED]
seen: precision downgrade that max|diff| does not see
defence: relative_error
numerics_class: approximate
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q.bfloat16().to(q.dtype), k.bfloat16().to(k.dtype), v, causal, sm_scale)
