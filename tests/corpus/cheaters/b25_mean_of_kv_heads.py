"""All query heads read the mean of the heads of k and v.

---
status: [INCORRECT]
seen: conversions of checkpoints from many heads to grouped ones, at run time
defence: contract
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    k, v = (x.float().mean(1, keepdim=True).to(x.dtype) for x in (k, v))
    return attention(q, k, v, causal, sm_scale)
