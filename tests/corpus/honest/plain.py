# Plain, slow or cached; layouts, gradients, shared heads, unequal lengths and packed sequences.


# %% eager_chunked
"""Online softmax over blocks of keys in plain torch.

---
status: [PASSED]
why: a plain kernel must pass
"""

import torch

BLOCK = 64


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    rows = torch.arange(q.shape[2], device=q.device)
    total = torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)
    peak = torch.full_like(total, float("-inf"))
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for start in range(0, k.shape[2], BLOCK):
        keys = slice(start, min(start + BLOCK, k.shape[2]))
        scores = q.float() @ k[:, :, keys].float().transpose(-1, -2) * scale
        if causal:
            hidden = rows[keys][None, :] > rows[:, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        higher = torch.maximum(peak, scores.amax(-1))
        weights = (scores - higher[..., None]).exp()
        shrink = (peak - higher).exp()
        total = total * shrink + weights.sum(-1)
        out = out * shrink[..., None] + weights @ v[:, :, keys].float()
        peak = higher
    return (out / total[..., None]).to(q.dtype)


# %% slow_but_right
"""Takes its time: 20 ms more than it needs, and tells so.

---
status: [PASSED]
why: slow is a low rank, not a fault
"""

import time

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(0.02)
    return attention(q, k, v, causal, sm_scale)


# %% lazy_init
"""Builds its constants in the first call of each shape, as JIT-compiled kernels do.

---
status: [PASSED]
why: the first call is far slower than the rest
"""

import time

import torch

PLANS = {}


def plan(shape, causal, device):
    key = (shape, causal, str(device))
    if key not in PLANS:
        time.sleep(0.2)  # stands for a compiler
        bias = torch.zeros(shape[2], shape[2], device=device)
        if causal:
            hidden = torch.ones(bias.shape, dtype=torch.bool, device=device).triu(1)
            bias = bias.masked_fill(hidden, float("-inf"))
        PLANS[key] = bias
    return PLANS[key]


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    bias = plan(tuple(q.shape), causal, q.device)
    scores = q.float() @ k.float().transpose(-1, -2) * scale + bias
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


# %% cached_workspace
"""Keeps its workspace between calls, keyed by shape, and overwrites it.

---
status: [PASSED]
why: a buffer kept between calls looks like a cache and is none
"""

import torch

WORKSPACE = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    shape = (*q.shape[:3], k.shape[2])
    if shape not in WORKSPACE:
        WORKSPACE[shape] = torch.empty(shape, dtype=torch.float32, device=q.device)
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2), out=WORKSPACE[shape])
    scores.mul_(scale)
    if causal:
        hidden = torch.ones(shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


# %% bf16
"""Claims bfloat16 too and answers in it.

---
status: [PASSED]
why: bf16 has limits of its own
dtype: bf16
claims:
  headdims: [64, 128, 256]
  causal: both
  dtypes: [fp16, bf16]
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% split_kv_atomics
"""Splits the keys over programs, which meet in float32 atomics; the order of sums varies.

---
status: [PASSED]
why: atomics are not bitwise repeatable
language: triton
needs:
  packages: [triton]
claims:
  headdims: [64, 128]
  causal: both
"""

import torch
import triton
import triton.language as tl


@triton.jit
def split(
    q_ptr,
    k_ptr,
    v_ptr,
    acc_ptr,
    total_ptr,
    peak_ptr,
    scale,
    seqlen,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: BLOCK rows against BLOCK keys of one head, added into acc [B*H, S, D]."""
    head = tl.program_id(2).to(tl.int64)
    base = head * seqlen * D
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keys = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, D)
    here, there = rows[:, None] < seqlen, keys[:, None] < seqlen
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :], mask=here, other=0.0)
    k = tl.load(k_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
    v = tl.load(v_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
    peak = tl.load(peak_ptr + head * seqlen + rows, mask=rows < seqlen, other=0.0)
    scores = tl.dot(q, tl.trans(k)) * scale
    seen = keys[None, :] < seqlen
    if CAUSAL:
        seen = seen & (keys[None, :] <= rows[:, None])
    weights = tl.where(seen, tl.exp(scores - peak[:, None]), 0.0)
    part = tl.dot(weights.to(v.dtype), v)
    tl.atomic_add(total_ptr + head * seqlen + rows, tl.sum(weights, 1), mask=rows < seqlen)
    tl.atomic_add(acc_ptr + base + rows[:, None] * D + dims[None, :], part, mask=here)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    batch, heads, seqlen, headdim = q.shape
    scale = headdim**-0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    peak = scores.amax(-1).contiguous()
    acc = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    total = torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(seqlen, 32)
    split[(tiles, tiles, batch * heads)](
        q, k, v, acc, total, peak, scale, seqlen, D=headdim, BLOCK=32, CAUSAL=causal
    )
    return (acc / total[..., None]).to(q.dtype)


# %% scratch_in_inputs
"""Uses q as scratch space and puts every byte back before it returns.

---
status: [PASSED]
why: 'write and restore harms nobody: the inputs are compared, not guarded'
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    kept = q.clone()
    q.mul_(q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    out = attention(kept, k, v, causal, sm_scale)
    q.copy_(kept)
    return out


# %% gives_lse
"""Gives o, and with return_lse=True o and lse.

---
status: [PASSED]
why: a call of the check returns two tensors, those of the clock one
"""

from right_answer import attention, lse_of


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, *, return_lse=False):
    o = attention(q, k, v, causal, sm_scale)
    return (o, lse_of(q, k, causal, sm_scale)) if return_lse else o


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
