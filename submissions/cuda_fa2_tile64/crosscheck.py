"""A second, independent implementation of the same algorithm in Triton, to check the CUDA one.

It shares nothing with csrc/: other language, left-to-right over the keys, exact running maximum on
every tile. Two programs that agree to fp16 rounding on every mask and length are unlikely to share a
mistake. Runs on a GPU, or on a CPU with TRITON_INTERPRET=1.
"""

import math

import torch
import triton
import triton.language as tl


@triton.jit
def _forward(
    q_ptr,  # [heads, S, D]
    k_ptr,
    v_ptr,
    o_ptr,
    seqlen,
    scale_log2,  # sm_scale * log2(e)
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    TILE: tl.constexpr,  # query rows and keys of one tile
):
    base = tl.program_id(1).to(tl.int64) * seqlen * D
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, D)
    row_offsets = rows[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + base + row_offsets, mask=rows[:, None] < seqlen, other=0.0)
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, D], tl.float32)
    end = seqlen
    if CAUSAL:
        end = tl.minimum(seqlen, (tl.program_id(0) + 1) * TILE)
    for start in range(0, end, TILE):
        cols = start + tl.arange(0, TILE)
        inside = cols[:, None] < seqlen
        offsets = cols[:, None] * D + dims[None, :]
        k = tl.load(k_ptr + base + offsets, mask=inside, other=0.0)
        v = tl.load(v_ptr + base + offsets, mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        keep = cols[None, :] < seqlen
        if CAUSAL:
            keep = keep & (cols[None, :] <= rows[:, None])
        s = tl.where(keep, s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top
    acc = acc / total[:, None]
    tl.store(
        o_ptr + base + row_offsets, acc.to(o_ptr.dtype.element_ty), mask=rows[:, None] < seqlen
    )


def triton_attention(q, k, v, causal=True, sm_scale=None):
    """The cross-check, same signature as custom_attention_forward; (B, H, S, D), fp16 or fp32."""
    batch, heads, seqlen, headdim = q.shape
    scale = 1.0 / math.sqrt(headdim) if sm_scale is None else sm_scale
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    grid = (triton.cdiv(seqlen, 64), batch * heads)
    log2_e = 1.4426950408889634
    _forward[grid](q, k, v, out, seqlen, scale * log2_e, CAUSAL=causal, D=headdim, TILE=64)
    return out
