"""dk and dv of a shared head are those of one query head of its group, times their number.

---
status: [INCORRECT]
seen: sums over a sample, which are right on average
defence: contract
axes: gqa
problem: attention_backward
claims: {gqa: true}
"""

from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    shape, group = k.shape, q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    dq, dk, dv = gradients(q, k, v, do, causal, sm_scale)
    dk, dv = (x.view(*shape[:2], group, *shape[2:])[:, :, 0] * group for x in (dk, dv))
    return tuple(x.to(q.dtype) for x in (dq, dk, dv))
