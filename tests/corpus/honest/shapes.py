# Layouts, gradients, shared heads, unequal lengths and packed sequences.


# %% noncontiguous_output
"""Returns the right values in a transposed memory layout.

---
status: [PASSED]
why: (batch, seqlen, heads, headdim) kernels return such views
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = attention(q, k, v, causal, sm_scale)
    return out.transpose(1, 2).contiguous().transpose(1, 2)


# %% backward_in_bshd
"""Returns gradients as views of (batch, seqlen, heads, headdim) memory.

---
status: [PASSED]
why: FlashAttention's gradients are such views, three of them
problem: attention_backward
"""

from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    found = gradients(q, k, v, do, causal, sm_scale)
    return tuple(x.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2) for x in found)


# %% backward_by_autograd
"""Runs the forward again under autograd and differentiates it.

---
status: [PASSED]
why: 'gradients are switched on inside the call and o and lse are ignored: slow, not wrong'
problem: attention_backward
"""

import torch
import torch.nn.functional as F


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal, scale=sm_scale)
        return torch.autograd.grad(out, leaves, do)


# %% shared_heads_repeated
"""k and v written out for every query head.

---
status: [PASSED]
why: who repeats them reads more and computes the same
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    return attention(q, k, v, causal, sm_scale)


# %% bottom_right_mask
"""More keys than queries, the mask at the lower right.

---
status: [PASSED]
why: FlashAttention's meaning of causal, not that of SDPA's flag
axes: chunk
claims: {seqlens: any}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% sequence_by_sequence
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


# %% gradients_summed_over_groups
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
