"""Reads cu_seqlens in the first call of a shape and keeps the schedule: the wait for them is gone.

---
status: [INCORRECT]
seen: plans kept by shape; benchmarks that pack the same lengths in each call
defence: fresh_inputs
axes: packed
claims: {packed: true}
"""

from right_answer import attention, one_by_one

KEPT = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    key = (tuple(q.shape), len(cu_seqlens_q))
    if key not in KEPT:
        KEPT[key] = cu_seqlens_q.tolist()
    return one_by_one(lambda *one: attention(*one, causal, sm_scale), q, k, v, KEPT[key])
