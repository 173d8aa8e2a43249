"""The third Triton baseline: FlashAttention-3's asynchronous style, as far as Triton reaches.

Changed since triton_flash_v2:
  1. TMA descriptors: one thread asks for a whole tile, no addresses, no bounds checks; rows past
     the end read zeros and are not stored.
  2. The loads of the next tiles run while this one computes (software pipelining, num_stages).
  3. Descriptors are three-dimensional [heads, seqlen, HEADDIM], so a tile never leaks into the
     next head.

Shapes:  q, k, v, o  [batch, nheads, seqlen, HEADDIM], contiguous, fp16 or bf16.

   global --TMA--> | k0 v0 | k1 v1 | k2 v2 |  num_stages slots in shared memory
                      |  wgmma scores = q k^T       one program owns one q tile of one head
                      |  SOFTMAX in registers       q    [BLOCK_M, HEADDIM]  loaded once
                      v  wgmma o += p v             m, l [BLOCK_M]           in units of log2

Phases:  LOAD Q | PASS 1 | PASS 2 | STORE; in a pass: SCORES | MASK | SOFTMAX | ACCUMULATE
         FlashAttention-3, Shah et al., arXiv 2407.08608, section 3.1.

Bound:   4 * seqlen^2 * HEADDIM flop a head (half of it when causal), bound by the tensor cores.
Measured: one NVIDIA H200, 700 W, Triton 3.6, hdim64_seq4k, hdim128_seq8k, hdim256_seq16k:
         374, 477, 526 TFLOP/s, 0.86, 0.80, 0.82 of cuDNN in the same run.
Limits:  HEADDIM a power of two from 16 to 256; sm_90 or newer. Producer and consumer warps
         (warp_specialize) are left out: see NOTES.md.
Run:     python run.py --submission triton_two_pass --baselines triton_flash_v3
"""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634

# HEADDIM -> BLOCK_M, BLOCK_N, num_warps, num_stages
TILES = {16: (128, 64, 4, 3), 32: (128, 64, 4, 3), 64: (128, 64, 8, 3),
         128: (128, 128, 8, 3), 256: (128, 64, 8, 2)}  # fmt: skip


@triton.jit
def attend_tiles(
    o, m, l, q, last_key, k_desc, v_desc, head, scale_log2, kv_begin, kv_end, seqlen,
    CUT: tl.constexpr,  # True: the diagonal or the end of the sequence runs through the tiles
    HEADDIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for kv_start in tl.range(kv_begin, kv_end, BLOCK_N):
        # SCORES, MASK
        k = k_desc.load([head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
        scores = tl.dot(q, k.T)
        if CUT:
            cols = kv_start + tl.arange(0, BLOCK_N)
            scores = tl.where(cols[None, :] <= last_key[:, None], scores, -float("inf"))

        # SOFTMAX
        m_new = tl.maximum(m, tl.max(scores, 1) * scale_log2)
        p = tl.math.exp2(scores * scale_log2 - m_new[:, None])
        rescale = tl.math.exp2(m - m_new)
        l = l * rescale + tl.sum(p, 1)
        m = m_new

        # ACCUMULATE
        v = v_desc.load([head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
        o = tl.dot(p.to(v.dtype), v, o * rescale[:, None])
    return o, m, l


@triton.jit
def flash_v3_kernel(
    q_desc, k_desc, v_desc, o_desc,  # TMA descriptors of [batch * nheads, seqlen, HEADDIM]
    scale_log2,  # sm_scale * log2(e), positive
    seqlen,  # tokens, the same for queries and keys
    HEADDIM: tl.constexpr,  # elements of one head, a power of two
    CAUSAL: tl.constexpr,  # True: query i sees keys 0..i
    BLOCK_M: tl.constexpr,  # query rows that one program owns
    BLOCK_N: tl.constexpr,  # keys that one trip of a pass handles
):  # fmt: skip
    q_start = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head = tl.program_id(1)
    rows = q_start + tl.arange(0, BLOCK_M)
    last_key = tl.minimum(rows, seqlen - 1) if CAUSAL else tl.full([BLOCK_M], seqlen - 1, tl.int32)

    # LOAD Q
    q = q_desc.load([head, q_start, 0]).reshape([BLOCK_M, HEADDIM])

    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, HEADDIM], tl.float32)
    kv_end = tl.minimum(q_start + BLOCK_M, seqlen) if CAUSAL else seqlen
    full_end = (q_start if CAUSAL else seqlen) // BLOCK_N * BLOCK_N

    # PASS 1, PASS 2
    o, m, l = attend_tiles(o, m, l, q, last_key, k_desc, v_desc, head, scale_log2, 0, full_end, seqlen,
                           False, HEADDIM, BLOCK_N)  # fmt: skip
    o, m, l = attend_tiles(o, m, l, q, last_key, k_desc, v_desc, head, scale_log2, full_end, kv_end,
                           seqlen, True, HEADDIM, BLOCK_N)  # fmt: skip

    # STORE
    o = (o * (1.0 / l)[:, None]).to(o_desc.dtype)
    o_desc.store([head, q_start, 0], o.reshape([1, BLOCK_M, HEADDIM]))


def describe_heads(x, block_rows):
    """TMA descriptor of x [batch, nheads, seqlen, headdim], one tile [1, block_rows, headdim]."""
    batch, nheads, seqlen, headdim = x.shape
    shape = [batch * nheads, seqlen, headdim]
    return TensorDescriptor(x, shape, [seqlen * headdim, headdim, 1], [1, block_rows, headdim])


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Return softmax(q k^T * sm_scale) v of each head; sm_scale defaults to 1/sqrt(headdim)."""
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # the kernel knows no strides
    batch, nheads, seqlen, headdim = q.shape
    if sm_scale is None:
        sm_scale = 1.0 / math.sqrt(headdim)
    if sm_scale <= 0:  # the kernel takes the maximum before it scales: the sign goes into q
        q, sm_scale = (-q, -sm_scale) if sm_scale < 0 else (torch.zeros_like(q), 1.0)
    block_m, block_n, num_warps, num_stages = TILES[headdim]
    o = torch.empty_like(q)
    grid = (triton.cdiv(seqlen, block_m), batch * nheads)
    flash_v3_kernel[grid](
        describe_heads(q, block_m), describe_heads(k, block_n),
        describe_heads(v, block_n), describe_heads(o, block_m),
        sm_scale * LOG2_E, seqlen,
        HEADDIM=headdim, CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return o
