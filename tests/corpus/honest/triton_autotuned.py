"""A Triton kernel that times several configurations in its first call.

---
status: [PASSED]
why: autotuning is many extra launches in the first call
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

CONFIGS = [
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=8, num_stages=2),
]


@triton.autotune(configs=CONFIGS, key=["seqlen", "D", "CAUSAL"])
@triton.jit
def attend(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    scale_log2e,
    seqlen,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: BLOCK_M query rows of one (batch, head); q, k, v, o are [B*H, S, D]."""
    base = tl.program_id(1).to(tl.int64) * seqlen * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    inside = rows[:, None] < seqlen
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    peak = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    last = seqlen
    if CAUSAL:
        last = tl.minimum(seqlen, (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        there = keys[:, None] < seqlen
        k = tl.load(k_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
        v = tl.load(v_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale_log2e
        seen = keys[None, :] < seqlen
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    out = acc / total[:, None]
    tl.store(o_ptr + base + rows[:, None] * D + dims[None, :], out.to(q.dtype), mask=inside)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    batch, heads, seqlen, headdim = q.shape
    scale = headdim**-0.5 if sm_scale is None else sm_scale
    out = torch.empty_like(q)

    def grid(meta):
        return (triton.cdiv(seqlen, meta["BLOCK_M"]), batch * heads)

    attend[grid](q, k, v, out, scale * 1.4426950408889634, seqlen, D=headdim, CAUSAL=causal)
    return out
