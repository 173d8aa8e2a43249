"""Flash attention forward for Hopper in Gluon: the kernel of gluon_champion.

Changed since triton_champion: the compiler no longer decides who waits for what. A producer warp
feeds tiles by TMA, two to four consumer warpgroups own 64 query rows each, and every wait is
written down, so that the softmax of one tile runs under the matrix products of its neighbours.

Shapes:  q, o  [batch, nheads, seqlen, HEADDIM], k, v  [batch, kv_heads, seqlen, HEADDIM],
         contiguous, fp16 or bf16; query head h reads kv head h // (nheads // kv_heads).

 producer (1 warp)   q --TMA--> q_smem [CONSUMERS, 64, HEADDIM]
                  k, v --TMA--> k_smem, v_smem [STAGES, BLOCK_N, HEADDIM], k_full / k_empty ...
                                     |
 consumer c (4 warps), trip j:       v                 scores  [64, BLOCK_N]  fp32, registers
   issue  scores = q k_j^T        (wgmma, async)       p       [64, BLOCK_N]  fp16, registers
   issue  o += p_{j-1} v_{j-1}    (wgmma, async)       o       [64, HEADDIM]  fp32, registers
   wait scores | p_j = exp2(scores * scale - reference) | wait o     keys run from last to first

Phases:  LOAD (producer); FIRST TILE | TRIPS | LAST PRODUCT | STORE (consumers); REDO (both)
         Producer, consumers, ping-pong and the order of the two products: FlashAttention-3,
         Shah et al., arXiv 2407.08608, sections 3.1 and 3.2.

Lazy softmax: the first tile of a row, the one on the diagonal, gives an exact maximum. It stays the
 reference of the exponents for the whole row: the later tiles need no maximum, no rescaling and no
 shuffle. That is exact as long as no p overflows 16 bits. A thread sums its p anyway, and every p
 is at most that sum, so a sum below SUM_LIMIT proves it for the whole row. A q tile with a larger
 sum is flagged and done again by the same code with SAFE=True, which keeps a running
 maximum. HEADROOM_LOG2 moves the reference up: scores may outgrow the first tile by 2^6 * 2^15.

Bound:   4 * seqlen^2 * HEADDIM flop a head (half of it when causal), bound by the tensor cores
         and at HEADDIM 64 by exp2 as well.
Measured: one NVIDIA H200, 700 W, Triton 3.6, hdim64_seq4k, hdim128_seq8k, hdim256_seq16k:
         564, 741, 789 TFLOP/s, 1.29, 1.24, 1.24 of cuDNN in the same run.
Limits:  sm_90 alone (wgmma); HEADDIM 64, 128, 256; a q tile that outgrows its headroom costs
         its time twice.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.6 has the first name, 3.9 the second.
async_load = getattr(tma, "async_copy_global_to_shared", None)
async_load = getattr(tma, "async_load", async_load)


class Tile(NamedTuple):
    """What is fixed for a headdim; a compile-time constant of every function below."""

    HEADDIM: int  # 64, 128 or 256
    CONSUMERS: int  # warpgroups with 64 query rows each, 2 to 4
    BLOCK_N: int  # keys of one kv tile, 64 or 128
    STAGES: int  # kv tiles in shared memory
    CONSUMER_REGISTERS: int
    PRODUCER_REGISTERS: int


ROWS = gl.constexpr(64)  # query rows of one consumer: the height of one wgmma
HEADROOM_LOG2 = gl.constexpr(6.0)
SUM_LIMIT = gl.constexpr(60000.0)  # below the largest fp16, 65504
PARTS = gl.constexpr(8)  # columns j, j + 8, j + 16, ... of a score tile are in one thread
NO_SWIZZLE = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
ONE_VALUE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def make_barriers(TILE: gl.constexpr):
    """q_full, q_empty, k_full, k_empty, v_full, v_empty, turn: a consumer arrives once on each."""
    CONSUMERS: gl.constexpr = TILE.CONSUMERS
    STAGES: gl.constexpr = TILE.STAGES
    layout: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [1], layout)
    q_empty = gl.allocate_shared_memory(gl.int64, [1], layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], layout)
    turn = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], layout)
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=CONSUMERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=CONSUMERS)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=CONSUMERS)
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(turn.index(consumer), count=1)
    mbarrier.arrive(turn.index(0))  # consumer 0 opens the ring
    return q_full, q_empty, k_full, k_empty, v_full, v_empty, turn


@gluon.jit
def flagged(redo_ptr, item, TILE: gl.constexpr):
    """Did a consumer leave this q tile for the safe pass?"""
    CONSUMERS: gl.constexpr = TILE.CONSUMERS
    found = gl.load(redo_ptr + item * CONSUMERS)
    for consumer in gl.static_range(1, CONSUMERS):
        found = found | gl.load(redo_ptr + item * CONSUMERS + consumer)
    return found != 0


@gluon.jit
def place(item, q_tiles, seqlen, CAUSAL: gl.constexpr, TILE: gl.constexpr):
    """head, first row and number of kv tiles of work item head * q_tiles + q_tile."""
    BLOCK_M: gl.constexpr = TILE.CONSUMERS * ROWS
    head = item // q_tiles
    q_start = (item - head * q_tiles) * BLOCK_M
    kv_end = gl.minimum(q_start + BLOCK_M, seqlen) if CAUSAL else seqlen
    return head, q_start, (kv_end + TILE.BLOCK_N - 1) // TILE.BLOCK_N


@gluon.jit
def load_partition(load, CAUSAL: gl.constexpr, TILE: gl.constexpr, SAFE: gl.constexpr):
    """LOAD: one warp asks for the q tiles and streams k and v, from the last key to the first."""
    CONSUMERS: gl.constexpr = TILE.CONSUMERS
    STAGES: gl.constexpr = TILE.STAGES
    BLOCK_N: gl.constexpr = TILE.BLOCK_N
    q_desc, k_desc, v_desc, buffers, barriers, schedule_ptr, schedule_width, redo_ptr = load[:8]
    seqlen, q_tiles, group = load[8:]
    q_smem, k_smem, v_smem = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, _ = barriers
    schedule_ptr += gl.program_id(0) * schedule_width
    count = gl.load(schedule_ptr)
    q_count = 0  # q tiles loaded so far
    kv_count = 0  # kv tiles loaded so far
    for entry in range(1, count + 1):
        item = gl.load(schedule_ptr + entry)
        wanted = True
        if SAFE:
            wanted = flagged(redo_ptr, item, TILE)
        if wanted:
            head, q_start, kv_tiles = place(item, q_tiles, seqlen, CAUSAL, TILE)
            mbarrier.wait(q_empty, (q_count & 1) ^ 1)
            mbarrier.expect(q_full, q_desc.block_type.nbytes * CONSUMERS)
            for c in gl.static_range(CONSUMERS):
                row = q_start + c * ROWS
                async_load(q_desc, [head, row, 0], q_full, q_smem.index(c))
            q_count += 1
            kv_head = head // group
            for trip in range(kv_tiles):
                kv_start = (kv_tiles - 1 - trip) * BLOCK_N
                slot = kv_count % STAGES
                phase = ((kv_count // STAGES) & 1) ^ 1
                full = k_full.index(slot)
                mbarrier.wait(k_empty.index(slot), phase)
                mbarrier.expect(full, k_desc.block_type.nbytes)
                async_load(k_desc, [kv_head, kv_start, 0], full, k_smem.index(slot))
                full = v_full.index(slot)
                mbarrier.wait(v_empty.index(slot), phase)
                mbarrier.expect(full, v_desc.block_type.nbytes)
                async_load(v_desc, [kv_head, kv_start, 0], full, v_smem.index(slot))
                kv_count += 1


@gluon.jit
def matrix(smem, index, HEIGHT: gl.constexpr, HEADDIM: gl.constexpr):
    """Slot `index` of smem [slots, 1, HEIGHT, HEADDIM] as a matrix that wgmma reads."""
    return smem.index(index).reshape([HEIGHT, HEADDIM])


@gluon.jit
def partial_sums(p, BLOCK_N: gl.constexpr):
    """[64, PARTS] sums of p [64, BLOCK_N] over the columns that one thread holds: no shuffle."""
    return gl.sum(p.reshape([ROWS, BLOCK_N // PARTS, PARTS]), axis=1)


@gluon.jit
def skip_tiles(barriers, CONSUMER, kv_count, turn_phase, count, TILE: gl.constexpr):
    """Release kv tiles that lie right of all rows of this consumer; the others need them."""
    _, _, k_full, k_empty, v_full, v_empty, turn = barriers
    for _trip in range(count):
        slot = kv_count % TILE.STAGES
        phase = (kv_count // TILE.STAGES) & 1
        mbarrier.wait(k_full.index(slot), phase)
        mbarrier.arrive(k_empty.index(slot))
        mbarrier.wait(v_full.index(slot), phase)
        mbarrier.arrive(v_empty.index(slot))
        mbarrier.wait(turn.index(CONSUMER), turn_phase)
        turn_phase ^= 1
        mbarrier.arrive(turn.index((CONSUMER + 1) % TILE.CONSUMERS))
        kv_count += 1
    return kv_count, turn_phase


@gluon.jit
def attend(
    CONSUMER: gl.constexpr, o_ptr, buffers, barriers, scale_log2, seqlen,
    head, q_start, kv_tiles, q_count, kv_count, turn_phase,
    CAUSAL: gl.constexpr, TILE: gl.constexpr, SAFE: gl.constexpr,
):  # fmt: skip
    """64 rows of one q tile; returns kv_count, turn_phase and whether a sum passed SUM_LIMIT.

    Consumers issue their matrix products in turn, so that one multiplies while another computes
    exponentials; Gluon has no named barriers, so `turn` is a ring of mbarriers.
    """
    q_smem, k_smem, v_smem = buffers
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turn = barriers
    dtype: gl.constexpr = q_smem.dtype
    BLOCK_N: gl.constexpr = TILE.BLOCK_N
    HEADDIM: gl.constexpr = TILE.HEADDIM
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADDIM, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    no_scores = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    first_row = q_start + CONSUMER * ROWS

    skipped = 0
    if CAUSAL:
        kv_end = gl.minimum(first_row + ROWS, seqlen)
        skipped = kv_tiles - (kv_end + BLOCK_N - 1) // BLOCK_N
        kv_count, turn_phase = skip_tiles(barriers, CONSUMER, kv_count, turn_phase, skipped, TILE)
    trips = kv_tiles - skipped

    # FIRST TILE: the diagonal or the end of the sequence runs through this one and no other,
    # because 64 rows never straddle two kv tiles of 64 or 128 keys.
    slot = kv_count % TILE.STAGES
    phase = (kv_count // TILE.STAGES) & 1
    mbarrier.wait(q_full, q_count & 1)
    mbarrier.wait(k_full.index(slot), phase)
    q = matrix(q_smem, CONSUMER, ROWS, HEADDIM)
    k = matrix(k_smem, slot, BLOCK_N, HEADDIM).permute((1, 0))
    scores = warpgroup_mma(q, k, no_scores, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, [scores])
    mbarrier.arrive(k_empty.index(slot))
    cols = (trips - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
    last_key = gl.full([ROWS], seqlen - 1, gl.int32, s_rows)
    if CAUSAL:
        last_key = gl.minimum(last_key, first_row + gl.arange(0, ROWS, s_rows))
    scores = gl.where(cols[None, :] <= last_key[:, None], scores, -float("inf"))
    reference = gl.max(scores, axis=1) * scale_log2
    if not SAFE:
        reference += HEADROOM_LOG2
    p32 = gl.exp2(scores * scale_log2 - reference[:, None])
    l = partial_sums(p32, BLOCK_N)
    p = gl.convert_layout(p32.to(dtype), p_layout)
    o = gl.zeros([ROWS, HEADDIM], gl.float32, o_layout)
    v_slot = slot
    v_phase = phase
    kv_count += 1

    # TRIPS: scores of tile j, product with v of tile j - 1, exponentials of tile j.
    for _trip in range(1, trips):
        slot = kv_count % TILE.STAGES
        phase = (kv_count // TILE.STAGES) & 1
        mbarrier.wait(k_full.index(slot), phase)
        mbarrier.wait(turn.index(CONSUMER), turn_phase)
        turn_phase ^= 1
        k = matrix(k_smem, slot, BLOCK_N, HEADDIM).permute((1, 0))
        scores = warpgroup_mma(q, k, no_scores, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(v_slot), v_phase)
        v = matrix(v_smem, v_slot, BLOCK_N, HEADDIM)
        o = warpgroup_mma(p, v, o, is_async=True)
        mbarrier.arrive(turn.index((CONSUMER + 1) % TILE.CONSUMERS))
        scores = warpgroup_mma_wait(1, [scores])
        mbarrier.arrive(k_empty.index(slot))
        kv_count += 1

        rescale = gl.full([ROWS], 1.0, gl.float32, s_rows)  # the name must exist in both passes
        if SAFE:
            grown = gl.maximum(reference, gl.max(scores, axis=1) * scale_log2)
            rescale = gl.exp2(reference - grown)
            reference = grown
        p32 = gl.exp2(scores * scale_log2 - reference[:, None])
        if SAFE:
            l *= gl.convert_layout(rescale, gl.SliceLayout(1, l.type.layout))[:, None]
        l += partial_sums(p32, BLOCK_N)
        p_next = gl.convert_layout(p32.to(dtype), p_layout)
        o = warpgroup_mma_wait(0, [o])
        if SAFE:
            o *= gl.convert_layout(rescale, o_rows)[:, None]
        mbarrier.arrive(v_empty.index(v_slot))
        p = p_next
        v_slot = slot
        v_phase = phase
    mbarrier.arrive(q_empty)

    # LAST PRODUCT, with the reductions of the row sums under it.
    mbarrier.wait(v_full.index(v_slot), v_phase)
    o = warpgroup_mma(p, matrix(v_smem, v_slot, BLOCK_N, HEADDIM), o, is_async=True)
    inverse = gl.convert_layout(1.0 / gl.sum(l, axis=1), o_rows)
    overflow = gl.max(gl.max(l, axis=1), axis=0)
    o = warpgroup_mma_wait(0, [o])
    mbarrier.arrive(v_empty.index(v_slot))

    # STORE: rows past the end of the head hold nothing and stay unwritten.
    rows = first_row + gl.arange(0, ROWS, o_rows)
    dims = gl.arange(0, HEADDIM, gl.SliceLayout(0, o_layout))
    o_ptr += head.to(gl.int64) * seqlen * HEADDIM
    o = (o * inverse[:, None]).to(dtype)
    gl.store(o_ptr + rows[:, None] * HEADDIM + dims[None, :], o, mask=rows[:, None] < seqlen)
    return kv_count, turn_phase, gl.where(overflow <= SUM_LIMIT, 0, 1)


@gluon.jit
def attend_partition(
    CONSUMER: gl.constexpr, work, CAUSAL: gl.constexpr, TILE: gl.constexpr, SAFE: gl.constexpr
):
    """All q tiles of this program, 64 rows of each."""
    o_ptr, buffers, barriers, schedule_ptr, schedule_width, redo_ptr, redo_smem = work[:7]
    scale_log2, seqlen, q_tiles = work[7:]
    schedule_ptr += gl.program_id(0) * schedule_width
    count = gl.load(schedule_ptr)
    item = gl.load(schedule_ptr + 1)
    q_count = 0
    kv_count = 0
    turn_phase = 0
    for entry in range(1, count + 1):
        next_item = gl.load(schedule_ptr + entry + 1)  # the row of the table has one to spare
        wanted = True
        if SAFE:
            wanted = flagged(redo_ptr, item, TILE)
        if wanted:
            head, q_start, kv_tiles = place(item, q_tiles, seqlen, CAUSAL, TILE)
            kv_count, turn_phase, overflow = attend(
                CONSUMER, o_ptr, buffers, barriers, scale_log2, seqlen,
                head, q_start, kv_tiles, q_count, kv_count, turn_phase,
                CAUSAL, TILE, SAFE,
            )  # fmt: skip
            q_count += 1
            if not SAFE:
                gl.store(redo_ptr + item * TILE.CONSUMERS + CONSUMER, overflow)
                if overflow != 0:
                    redo_smem.index(CONSUMER).store(gl.full([1], 1, gl.int32, ONE_VALUE))
        item = next_item


@gluon.jit
def fork(
    q_desc, k_desc, v_desc, o_ptr, buffers, barriers, schedule_ptr, schedule_width, redo_ptr,
    redo_smem, scale_log2, seqlen, q_tiles, group,
    CAUSAL: gl.constexpr, TILE: gl.constexpr, SAFE: gl.constexpr,
):  # fmt: skip
    """Run consumers and producer to their end; the program's own four warps are consumer 0."""
    load = (q_desc, k_desc, v_desc, buffers, barriers, schedule_ptr, schedule_width, redo_ptr,
            seqlen, q_tiles, group)  # fmt: skip
    work = (o_ptr, buffers, barriers, schedule_ptr, schedule_width, redo_ptr, redo_smem,
            scale_log2, seqlen, q_tiles)  # fmt: skip
    C: gl.constexpr = TILE.CONSUMER_REGISTERS
    P: gl.constexpr = TILE.PRODUCER_REGISTERS
    if TILE.CONSUMERS == 2:
        gl.warp_specialize([
            (attend_partition, (0, work, CAUSAL, TILE, SAFE)),
            (attend_partition, (1, work, CAUSAL, TILE, SAFE)),
            (load_partition, (load, CAUSAL, TILE, SAFE)),
        ], [4, 1], [C, P])  # fmt: skip
    elif TILE.CONSUMERS == 3:
        gl.warp_specialize([
            (attend_partition, (0, work, CAUSAL, TILE, SAFE)),
            (attend_partition, (1, work, CAUSAL, TILE, SAFE)),
            (attend_partition, (2, work, CAUSAL, TILE, SAFE)),
            (load_partition, (load, CAUSAL, TILE, SAFE)),
        ], [4, 4, 1], [C, C, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend_partition, (0, work, CAUSAL, TILE, SAFE)),
            (attend_partition, (1, work, CAUSAL, TILE, SAFE)),
            (attend_partition, (2, work, CAUSAL, TILE, SAFE)),
            (attend_partition, (3, work, CAUSAL, TILE, SAFE)),
            (load_partition, (load, CAUSAL, TILE, SAFE)),
        ], [4, 4, 4, 1], [C, C, C, P])  # fmt: skip


@gluon.jit(do_not_specialize=["schedule_width", "seqlen", "q_tiles"])
def attention_kernel(
    q_desc,  # [batch * nheads, seqlen, HEADDIM], tiles of 64 rows
    k_desc, v_desc,  # [batch * kv_heads, seqlen, HEADDIM], tiles of BLOCK_N rows
    o_ptr,  # [batch * nheads, seqlen, HEADDIM]
    schedule_ptr,  # int32 [programs, schedule_width]: count, then that many work items
    schedule_width,
    redo_ptr,  # int32 [work items, CONSUMERS], written here
    scale_log2,  # sm_scale * log2(e), positive
    seqlen,  # tokens, the same for queries and keys
    q_tiles,  # q tiles of one head; work item = head * q_tiles + q tile
    group,  # query heads that read one kv head; 1 is compiled in
    CAUSAL: gl.constexpr,  # True: query i sees keys 0..i
    TILE: gl.constexpr,  # Tile
):  # fmt: skip
    CONSUMERS: gl.constexpr = TILE.CONSUMERS
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, ROWS, TILE.HEADDIM], q_desc.layout)
    kv_shape: gl.constexpr = [TILE.STAGES, 1, TILE.BLOCK_N, TILE.HEADDIM]
    k_smem = gl.allocate_shared_memory(dtype, kv_shape, k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, kv_shape, v_desc.layout)
    redo_smem = gl.allocate_shared_memory(gl.int32, [CONSUMERS, 1], NO_SWIZZLE)
    for consumer in gl.static_range(CONSUMERS):
        redo_smem.index(consumer).store(gl.full([1], 0, gl.int32, ONE_VALUE))
    buffers = (q_smem, k_smem, v_smem)
    barriers = make_barriers(TILE)
    redo_barriers = make_barriers(TILE)
    fence_async_shared()  # the barriers exist for the TMA unit before it signals one

    fork(q_desc, k_desc, v_desc, o_ptr, buffers, barriers, schedule_ptr, schedule_width, redo_ptr,
         redo_smem, scale_log2, seqlen, q_tiles, group, CAUSAL, TILE, False)  # fmt: skip

    # REDO: q tiles whose first tile was no guide to the rest, with a running maximum.
    overflow = gl.max(redo_smem.index(0).load(ONE_VALUE), axis=0)
    for consumer in gl.static_range(1, CONSUMERS):
        overflow = overflow | gl.max(redo_smem.index(consumer).load(ONE_VALUE), axis=0)
    if overflow != 0:
        fork(q_desc, k_desc, v_desc, o_ptr, buffers, redo_barriers, schedule_ptr, schedule_width,
             redo_ptr, redo_smem, scale_log2, seqlen, q_tiles, group, CAUSAL, TILE, True)  # fmt: skip
