"""Packed sequences one by one, their lengths read on the host in every call.

---
status: [PASSED]
why: the wait for the lengths is in its own time
axes: packed
claims: {packed: true}
"""

from right_answer import attention, one_by_one


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    edges = cu_seqlens_q.tolist()
    return one_by_one(lambda *one: attention(*one, causal, sm_scale), q, k, v, edges)
