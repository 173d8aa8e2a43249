"""Query head h reads head h % kv_heads of k and v: the groups interleaved.

---
status: [INCORRECT]
seen: repeat in place of repeat_interleave, in ports of Llama
defence: contract
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    group = q.shape[1] // k.shape[1]
    return attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), causal, sm_scale)
