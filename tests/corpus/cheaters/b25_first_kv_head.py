"""Every group reads the first head of k and v; right for one such head.

---
status: [INCORRECT]
seen: kernels written for multi-query attention
defence: contract
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k[:, :1], v[:, :1], causal, sm_scale)
