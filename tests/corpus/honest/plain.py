# Plain, slow or cached.


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
