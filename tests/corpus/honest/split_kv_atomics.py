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
