"""The right o both times; the lse that its backward would need is a logarithm to base two.

---
status: [INCORRECT]
seen: kernels that keep exp2's scale, beside backwards of others
defence: contract
"""

import math

from right_answer import attention, lse_of


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, return_lse=False):
    o = attention(q, k, v, causal, sm_scale)
    return (o, lse_of(q, k, causal, sm_scale) / math.log(2)) if return_lse else o
