"""Flash attention forward in Gluon: the shortest Hopper kernel that moves tiles by TMA and multiplies by wgmma.

Changed since triton_template: layouts, copies and waits are written down instead of found by the
compiler. While the products of one kv tile run, the TMA unit fetches the next.

Shapes:  q, k, v, o  [batch, nheads, seqlen, HEADDIM], contiguous, fp16 or bf16.
         A head is a matrix [seqlen, HEADDIM]; the kernel sees batch * nheads of them.

            kv tiles, j = 0, 1, ... ->               one program, four warps, owns one q tile
          +----+----+----+----+                      q_smem          [1, BLOCK_M, HEADDIM]
 q tile i | S0 | S1 | S2 | // |  -> o tile i         k_smem, v_smem  [2, 1, BLOCK_N, HEADDIM]
          +----+----+----+----+                      m, l [BLOCK_M] and o [BLOCK_M, HEADDIM]: registers
            mask mask mask skip (causal)             full [2]: one mbarrier a slot, "tile j is here"

Phases:  LOAD Q | for each kv tile: FETCH NEXT | SCORES | MASK | SOFTMAX | ACCUMULATE | STORE
         Online softmax: Milakov and Gimelshein, arXiv 1805.02867, algorithm 3.
         TMA, mbarriers and wgmma for attention: FlashAttention-3, Shah et al., arXiv 2407.08608.

Bound:   4 * seqlen^2 * HEADDIM flop a head (half of it when causal), bound by the tensor cores.
Measured: nothing yet; compiled for sm_90, never run.
Limits:  sm_90 alone (wgmma); HEADDIM 64, 128, 256. One warpgroup does everything in turn, so the tensor
         cores rest during the softmax: see gluon_champion for what warp specialization changes.
Run:     python run.py --submission gluon_template
"""

import math

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LOG2_E = 1.4426950408889634
BLOCK_M = 64  # query rows of a program: the height of one wgmma
BLOCK_N = 64  # keys of one kv tile
LAYOUT = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)

# The same two things under the names of older and newer Tritons.
async_load = getattr(tma, "async_copy_global_to_shared", None)
async_load = getattr(tma, "async_load", async_load)
all_warps = getattr(gl, "thread_barrier", None) or gl.barrier


@gluon.jit
def fetch(k_desc, v_desc, k_smem, v_smem, full, head, tile, BLOCK_N: gl.constexpr):
    """Ask for k and v of kv tile `tile`; the tile's slot is tile % 2, and full[slot] tells when."""
    slot = tile % 2
    mbarrier.expect(full.index(slot), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    async_load(k_desc, [head, tile * BLOCK_N, 0], full.index(slot), k_smem.index(slot))
    async_load(v_desc, [head, tile * BLOCK_N, 0], full.index(slot), v_smem.index(slot))


@gluon.jit(do_not_specialize=["seqlen"])
def attention_kernel(
    q_desc, k_desc, v_desc,  # [batch * nheads, seqlen, HEADDIM], tiles of BLOCK_M and BLOCK_N rows
    o_ptr,  # [batch * nheads, seqlen, HEADDIM]
    scale_log2,  # sm_scale * log2(e): exp2 is one instruction, exp is two
    seqlen,  # tokens, the same for queries and keys
    HEADDIM: gl.constexpr,
    CAUSAL: gl.constexpr,  # True: query i sees keys 0..i
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = q_desc.dtype
    # How wgmma spreads a [64, n] result over four warps, and what it wants p to look like.
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADDIM, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)

    q_smem = gl.allocate_shared_memory(dtype, [1, BLOCK_M, HEADDIM], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [2, 1, BLOCK_N, HEADDIM], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [2, 1, BLOCK_N, HEADDIM], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(full.index(1), count=1)
    fence_async_shared()  # the barriers exist for the TMA unit before it signals one

    q_start = gl.program_id(0) * BLOCK_M
    head = gl.program_id(1)
    kv_end = gl.minimum(q_start + BLOCK_M, seqlen) if CAUSAL else seqlen
    kv_tiles = (kv_end + BLOCK_N - 1) // BLOCK_N

    # LOAD Q: TMA reads zeros past the end of a head; those rows are never stored.
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    async_load(q_desc, [head, q_start, 0], q_full, q_smem)
    fetch(k_desc, v_desc, k_smem, v_smem, full, head, 0, BLOCK_N)
    mbarrier.wait(q_full, 0)
    q = q_smem.reshape([BLOCK_M, HEADDIM])

    m = gl.full([BLOCK_M], -float("inf"), gl.float32, s_rows)  # running maximum of the scores
    l = gl.zeros([BLOCK_M], gl.float32, s_rows)  # running sum of exp2(score - m)
    o = gl.zeros([BLOCK_M, HEADDIM], gl.float32, o_layout)  # running sum of exp2(score - m) * v
    no_scores = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, s_layout)
    last_key = gl.full([BLOCK_M], seqlen - 1, gl.int32, s_rows)
    if CAUSAL:
        last_key = gl.minimum(last_key, q_start + gl.arange(0, BLOCK_M, s_rows))

    for tile in range(kv_tiles):
        # FETCH NEXT: its slot was read by tile - 1, whose products all four warps have left.
        all_warps()
        if tile + 1 < kv_tiles:
            fetch(k_desc, v_desc, k_smem, v_smem, full, head, tile + 1, BLOCK_N)

        # SCORES: a slot is filled every second tile, so its barrier's phase flips every second tile.
        slot = tile % 2
        mbarrier.wait(full.index(slot), (tile // 2) & 1)
        k = k_smem.index(slot).reshape([BLOCK_N, HEADDIM]).permute((1, 0))
        scores = warpgroup_mma(q, k, no_scores, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, [scores]) * scale_log2

        # MASK: key 0 is seen by every row, so m is finite after the first tile.
        cols = tile * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
        scores = gl.where(cols[None, :] <= last_key[:, None], scores, -float("inf"))

        # SOFTMAX: everything summed so far was relative to the old maximum; bring it to the new.
        m_new = gl.maximum(m, gl.max(scores, axis=1))
        p = gl.exp2(scores - m_new[:, None])
        rescale = gl.exp2(m - m_new)
        l = l * rescale + gl.sum(p, axis=1)
        m = m_new

        # ACCUMULATE: p goes from the registers of one product straight into the next.
        o = o * gl.convert_layout(rescale, o_rows)[:, None]
        v = v_smem.index(slot).reshape([BLOCK_N, HEADDIM])
        o = warpgroup_mma(gl.convert_layout(p.to(dtype), p_layout), v, o, is_async=True)
        o = warpgroup_mma_wait(0, [o])

    # STORE
    rows = q_start + gl.arange(0, BLOCK_M, o_rows)
    dims = gl.arange(0, HEADDIM, gl.SliceLayout(0, o_layout))
    o = (o / gl.convert_layout(l, o_rows)[:, None]).to(dtype)
    o_ptr += head.to(gl.int64) * seqlen * HEADDIM  # int64: tensors pass 2^31 bytes
    gl.store(o_ptr + rows[:, None] * HEADDIM + dims[None, :], o, mask=rows[:, None] < seqlen)


def describe(x, block_rows):
    """TMA descriptor of x [batch, nheads, seqlen, headdim] with tiles [1, block_rows, headdim].

    Three dimensions, so that a tile at the end of a head reads zeros and not the next head.
    """
    batch, nheads, seqlen, headdim = x.shape
    shape = [batch * nheads, seqlen, headdim]
    strides = [seqlen * headdim, headdim, 1]
    return TensorDescriptor(x, shape, strides, [1, block_rows, headdim], LAYOUT)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Return softmax(q k^T * sm_scale) v of each head; sm_scale defaults to 1/sqrt(headdim)."""
    if triton.knobs.runtime.interpret:
        raise NotImplementedError("Gluon has no interpreter: gluon_template needs a Hopper GPU")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # the kernel knows no strides
    batch, nheads, seqlen, headdim = q.shape
    if sm_scale is None:
        sm_scale = 1.0 / math.sqrt(headdim)
    o = torch.empty_like(q)
    grid = (triton.cdiv(seqlen, BLOCK_M), batch * nheads)
    attention_kernel[grid](
        describe(q, BLOCK_M), describe(k, BLOCK_N), describe(v, BLOCK_N),
        o, sm_scale * LOG2_E, seqlen,
        HEADDIM=headdim, CAUSAL=causal, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4,
    )  # fmt: skip
    return o
