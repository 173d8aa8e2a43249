// Attention backward on Hopper (sm_90a), headdim 128: five products a tile in one kernel; the scores of the next query
// tile are ahead of dK and dQ, dQ is that of the tile before.
//
// Shapes   q, do [B, H, S, 128], k, v [B, H, S_k, 128] 16-bit floats; TMA boxes of 64 columns, 128-byte swizzle, rows
//          past the end are zeros. dq, dk, dv contiguous, with GENERAL of any strides. stats, dq_sum: see passes.cu
//          k_smem, v_smem [128, D]   q_smem [3][64, D]   do_smem [2][64, D]   ds_smem [2][128, 64]
//          dq_smem 8 warps x 16 x 64 floats
//
//            query tiles of 64, left to right →         one item = 128 kv rows of one head
//   WG 0    ┌────┬────┬────┬────┐   warpgroup w: kv rows 64 w ... + 63 of S^T, P^T, dP^T, dS^T, dk, dv
//   kv 0-63 │diag│    │    │    │   S^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dS^T Q
//   WG 1    ├────┼────┼────┼────┤   dQ^T = K^T dS^T needs both halves of dS: they meet in ds_smem.
//   64-127  │ // │diag│    │    │   warpgroup w has D rows 64 w ... + 63 of dQ^T
//           └─↓──┴─↓──┴─↓──┴─↓──┘
//             dq tiles, summed in memory by bulk operations (fp32), each warp its own piece
//
// Trip     P of tile i is in fp32 where its scores were. dP and dV of tile i are issued together, dS is made under dV,
//          in fp32 where dP was; then the scores of tile i + 1, dQ of tile i - 1 and dK of tile i are issued together,
//          and P of tile i + 1 is made under the last two
// Regs     P and dS in 16 bits, the A operands of dV and dK, share 16 (dV has read P before dS is packed), dP, dS and
//          dQ share 32: so the eight warps that multiply need 240, and four more have 24 each
// Loads    by one warp of the four, as slots become free. The barrier of a slot of q, which says that everybody is
//          through with its trip, is also what a warp waits for before it writes dS over that of the trip before
// Items    a kv block of a head, or a piece of its query tiles. A block of the grid stays and takes one item after the
//          other; q, do, v and k of the next one arrive as the last trips leave room. The first trip has no dQ and the
//          last one no scores. With full attention the kv blocks of the last, partly filled wave are PIECES items each:
//          who comes last sums their dk and dv, in order
// Passes   the other three warps do those before and after for other heads; or, with STORED=1, two of them see to it
//          that nobody has to clear the sums of dq: spare.cuh
// Phases   LOADS   FIRST SCORES   TRIP: ISSUE 1, DS, ISSUE 2, P OF NEXT, DQ OUT   LAST DQ   SUM PIECES   STORE
// Bound    10 B H S^2 D / 2 flops (causal) at 4096 per clock and SM: 1.39 ms at 1.83 GHz on 132 SMs for hdim128_seq8k.
//          Shared memory per trip, against tensor clocks: NOTES.md
// Measured NOTES.md
// Limits   sm_90a, D = 128; any S and scale. S_k other than S, fewer heads of k and v, uneven heads: GENERAL=1. Sums of
//          dq in no fixed order
// Check    python benchmarks/backward_grid.py --headdim 128
// build: -DHEADDIM=128
// promise: smem_bytes=228368 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DSTORED=1
// promise: smem_bytes=228368 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DGENERAL=1 -DBF16=1
// promise: smem_bytes=228368 registers=168 spills=0 warnings=0 blocks=1
#include "spare.cuh"

// ---------------------------------------------------------------------- shape of this build (by -D)
#ifndef HEADDIM
#define HEADDIM 128
#endif
static_assert(HEADDIM == 128, "this schedule is for headdim 128");

constexpr int D = HEADDIM, PANELS = D / 64;
constexpr int M = 64, N = 128;                           // query rows of a tile, kv rows of a block
constexpr int STAGES = 3, DO_STAGES = 2, DS_BUFFERS = 2; // tiles of q: in use, of the scores ahead, arriving; of do
constexpr int NQ = D / 4;                                // registers of dQ^T: 64 x 64 a warpgroup
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2;
constexpr uint32_t DQ_WARP_BYTES = NQ * 32 * 4, STAT_BYTES = M * 4;
constexpr uint32_t KV_PANEL = N * 128, TILE_PANEL = M * 128;
constexpr int THREADS = 256, WARPS = 8;                  // that multiply
constexpr int ALL_THREADS = THREADS + 128;
constexpr int RECORDS = 4, RECORD_BYTES = 32;            // of items, by the warp that loads for those that multiply
constexpr int PIECES = 2;

struct Params {
  const float* stats;    // [heads, tiles, 2, 64]: log2(e) * lse, delta
  float* dq_sum;         // [heads, tiles, 64 * D], zeros before, but see spare.cuh
  uint16_t* dk;          // [heads, rows of k, D]
  uint16_t* dv;
  uint32_t* taken;       // items taken; then, for each kv block in pieces, its pieces that
                         // are through. Zeros before
  float* parts;          // [kv blocks in pieces, PIECES, 2, 64, THREADS]: dk and dv of the pieces
  int whole;             // kv blocks that are one item each
  int seqlen;
  int heads;             // batch * heads
  int section;           // heads that are walked together, so that their q, do and dq_sum stay in L2
  int causal;
  float scale;           // softmax scale
  float scale_log2;      // the same times log2(e)
  Keys keys;             // GENERAL; dk and dv are of each head of q nevertheless
  Spare spare;           // passes by spare warps
  Strides dk_at, dv_at;  // GENERAL
  Stored stored;         // STORED
};
// of k and v
__device__ __forceinline__ int rows_of_k(const Params& p) { return GENERAL ? p.keys.seqlen : p.seqlen; }

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
         const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map,
         const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES;
  const uint32_t q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + DO_STAGES * TILE_BYTES, dq_smem = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = dq_smem + WARPS * DQ_WARP_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t spare_smem = delta_smem + DO_STAGES * STAT_BYTES;
  // [RECORDS][8]: head, first kv row, first tile, end; index, section, STORES, MAY_ADD
  const uint32_t record_smem = spare_smem + SPARE_WARPS * SPARE_BYTES;
  const uint32_t q_full = record_smem + RECORDS * RECORD_BYTES, do_full = q_full + 8 * STAGES;
  const uint32_t through = do_full + 8 * DO_STAGES;                // everybody is through with the tile in the slot
  const uint32_t k_full = through + 8 * STAGES, v_full = k_full + 8, k_empty = v_full + 8, v_empty = k_empty + 8;
  const uint32_t spare_full = v_empty + 8;
  const uint32_t pieces_through = spare_full + 8 * SPARE_WARPS;    // a word of one thread to all
  const uint32_t own_stored = pieces_through + 8;                  // STORED: [2], in turn from item to item
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES + DO_STAGES; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < STAGES; i++) mbar_init(through + 8 * i, WARPS);
    mbar_init(k_full, 1); mbar_init(v_full, 1); mbar_init(k_empty, WARPS + (STORED ? 2 : 0)); mbar_init(v_empty, WARPS);
    if (STORED) for (int i = 0; i < 2; i++) mbar_init(own_stored + 8 * i, WARPS);
    for (int i = 0; i < SPARE_WARPS; i++) mbar_init(spare_full + 8 * i, 1);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0;
  const int later = GENERAL ? p.keys.seqlen - p.seqlen : 0;   // row i sees the keys up to i + later, if causal
  const int tiles = (p.seqlen + M - 1) / M, kv_blocks = (rows_of_k(p) + N - 1) / N;

  auto next_record = [&](uint32_t record) {
    return record == record_smem + (RECORDS - 1) * RECORD_BYTES ? record_smem : record + RECORD_BYTES;
  };

  if (w == 2) {
    regs_down<24>();
    if (warp == 0) {
      // LOADS: items one after the other; a tile of q and do into each slot that everybody is through with
      const int items = p.whole + (p.heads * kv_blocks - p.whole) * PIECES;
      int index = __shfl_sync(~0u, counter_take_if(p.taken, lane0), 0), stage = 0, next = 1, seen = p.spare.lead - 1;
      uint32_t next_parity = 1, do_stage = 0, kv_parity = 1, record = record_smem;
#pragma unroll 1
      while (index < items) {
        // kv blocks of a section of heads: the first of each head, then the second, ...: the longest first if causal
        const int pieces = index < p.whole ? 1 : PIECES, piece = index < p.whole ? 0 : (index - p.whole) % PIECES;
        const int block = index < p.whole ? index : p.whole + (index - p.whole) / PIECES;
        const int section = block / (p.section * kv_blocks), in_section = block - section * p.section * kv_blocks;
        const int wide = min(p.section, p.heads - section * p.section), place = in_section / wide;
        const int stores = STORED && section < p.stored.sections, kv_block = stores ? kv_blocks - 1 - place : place;
        const int head = section * p.section + in_section - place * wide, kv0 = kv_block * N;
        const int from = p.causal ? (GENERAL ? max(kv0 - later, 0) : kv0) / M : 0, all = tiles - from;
        const int first = from + all * piece / pieces, end = from + all * (piece + 1) / pieces;
        if (!GENERAL && p.spare.lead && section > seen) {                     // its sums are zero, its stats are there
          counter_wait(p.spare.ready + section, halves_of(p.heads, p.section, section, tiles)); proxy_fence_global();
          seen = section;
        }
        const int told[8] = {head, kv0, first, end, index, section, stores, 0};
#pragma unroll
        for (int i = 0; i < (STORED ? 8 : 6); i++) sts_word_if(record + 4 * i, told[i], lane0);
        const int batch = GENERAL ? head / p.keys.nheads : 0;
        const Head at = {head - batch * (GENERAL ? p.keys.nheads : 0), batch};
        const Head kv_at = {GENERAL ? at.head / p.keys.group : head, batch};
        const float* stat = p.stats + ((uint64_t)head * tiles + first) * (2 * M);
#pragma unroll 1
        for (int tile = first; tile < end; ++tile, stat += 2 * M) {
          const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + do_stage * TILE_BYTES;
          // everybody is through with tile - 3, whose q was here: waited for with do of tile - 1
          mbar_expect_if(q_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
          for (int c = 0; c < PANELS; c++)
            load_box(q_tile + c * TILE_PANEL, &q_map, c * 64, tile * M, at, q_full + 8 * stage, lane0);
          bulk_load_if(lse_smem + stage * STAT_BYTES, stat, STAT_BYTES, q_full + 8 * stage, lane0);
          mbar_wait(through + 8 * next, next_parity);            // everybody is through with tile - 2
          mbar_expect_if(do_full + 8 * do_stage, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
          for (int c = 0; c < PANELS; c++)
            load_box(do_tile + c * TILE_PANEL, &do_map, c * 64, tile * M, at, do_full + 8 * do_stage, lane0);
          bulk_load_if(delta_smem + do_stage * STAT_BYTES, stat + M, STAT_BYTES, do_full + 8 * do_stage, lane0);
          do_stage ^= 1; stage = next;
          if (++next == STAGES) next = 0, next_parity ^= 1;
          if (tile == first) {
            mbar_wait(v_empty, kv_parity);
            mbar_expect_if(v_full, KV_BYTES, lane0);
#pragma unroll
            for (int c = 0; c < PANELS; c++) load_box(v_smem + c * KV_PANEL, &v_map, c * 64, kv0, kv_at, v_full, lane0);
            mbar_wait(k_empty, kv_parity);
            mbar_expect_if(k_full, KV_BYTES, lane0);
#pragma unroll
            for (int c = 0; c < PANELS; c++) load_box(k_smem + c * KV_PANEL, &k_map, c * 64, kv0, kv_at, k_full, lane0);
          }
        }
        kv_parity ^= 1; record = next_record(record);
        index = __shfl_sync(~0u, counter_take_if(p.taken, lane0), 0);
      }
      sts_word_if(record + 12, 0, lane0);                        // no tiles: no more items
      mbar_wait(k_empty, kv_parity);
      mbar_arrive_if(k_full, lane0);
    } else if (STORED) {
      StoredWarp<Params> stored{p, record_smem, k_full, k_empty, kv_blocks};
      if (warp == 1) stored.let_add();
      if (warp == 2) stored.tell(own_stored);
    } else if (!GENERAL && p.spare.lead) {
      const int spare = warp - 1;
      SpareWarp<Params>{p, spare_smem + spare * SPARE_BYTES, spare_full + 8 * spare, tiles, kv_blocks}.run<PIECES>();
    }
    return;
  }
  regs_up<240>();
  const int pair = 2 * (lane & 3);
  float s[32], dp[32], dk[D / 2], dv[D / 2]; uint32_t x[16];
  // where a lane points for 8 x 8 matrices: lanes 8 m ... 8 m + 7 are the rows of matrix m, at rows + 8 (m % 2),
  // chunk + m / 2
  const int matrix_row = 64 * w + warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // S^T of a query tile, dP^T: issued only
  auto issue_score = [&](float (&x)[32], uint32_t kv_smem, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      const uint32_t b = desc_low(tile_smem, 16) + (i & 3) * 2 + (i >> 2) * (TILE_PANEL >> 4);
      MmaSS<64, 0, 0>::mma(x, desc_low(kv_smem + w * 8192, 16) + (i & 3) * 2 + (i >> 2) * (KV_PANEL >> 4), b, i != 0);
    }
    wgmma_commit();
  };
  // acc += x^T tile, x^T [64 kv rows, 64 query columns] in registers
  auto issue_accumulate = [&](float (&acc)[D / 2], const uint32_t (&x)[16], uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaRS<D, 1>::mma(acc, x + 4 * i, desc_low(tile_smem, TILE_PANEL) + i * 128, 1);
    wgmma_commit();
  };
  auto issue_dq = [&](uint32_t ds_tile) {
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
      const uint32_t a = desc_low(k_smem, KV_PANEL) + i * 128 + w * (KV_PANEL >> 4);
      MmaSS<64, 1, 1>::mma(dp, a, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    }
    wgmma_commit();
  };
  int kv_rows = 0, row = 0;                              // this warpgroup's first kv row; this thread's: row, row + 8
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key
  auto make_p = [&](int tile, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 l = lds_float2(lse + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, (i & 1) ? -l.y : -l.x));
    }
    if ((p.causal && tile * M < kv_rows + 63 - later) || kv_rows + 64 > rows_of_k(p)) {
      // first query column that sees the row, less this lane's column
      const int from0 = row >= rows_of_k(p) ? 1 << 30 : p.causal ? row - later - tile * M - pair : -1;
      const int from1 = row + 8 >= rows_of_k(p) ? 1 << 30 : p.causal ? row + 8 - later - tile * M - pair : -1;
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
  };
  // dS^T = P^T (dP^T - delta), in place of dP^T
  auto make_ds = [&](uint32_t delta) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) dp[4 * j + i] = s[4 * j + i] * (dp[4 * j + i] - ((i & 1) ? d.y : d.x));
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 1; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j - 1 + matrix_chunk), x + 2 * j - 2);
  };
  // this warp's piece of dQ^T into dq_smem, from there added to dq_sum while the next trip runs
  float* dq_out = nullptr;
  const uint32_t dq_warp = dq_smem + warps * DQ_WARP_BYTES;
  uint32_t kv_parity = 0, record = record_smem;
  // STORED: this warp's part of the item's own tiles is in memory
  auto own_are_stored = [&] { bulk_wait(); mbar_arrive_if(own_stored + 8 * (kv_parity ^ 1), lane0); };
  auto dq_to_memory = [&](int tile) {
    const int i = STORED ? tile - (int)lds_word(record + 8) : 0;   // how many of the item's tiles are before it
    if (STORED && i == OWN) own_are_stored();
    else bulk_wait_read();
    __syncwarp();                                        // the bulk reduction of the trip before has read dq_smem
#pragma unroll
    for (int j = 0; j < NQ / 4; j++)
      sts_float4(dq_warp + (j * 32 + lane) * 16, dp[4 * j], dp[4 * j + 1], dp[4 * j + 2], dp[4 * j + 3]);
    proxy_fence(); __syncwarp();
    if (STORED) {
      const int stores = lds_word(record + STORES);
      if (stores && i >= OWN) count_wait(record + MAY_ADD, i / OWN);   // the block whose own tile it is has stored it
      bulk_store_if(dq_out, dq_warp, DQ_WARP_BYTES, lane0 && stores && i < OWN);
      bulk_add_if(dq_out, dq_warp, DQ_WARP_BYTES, lane0 && !(stores && i < OWN));
    } else bulk_add_if(dq_out, dq_warp, DQ_WARP_BYTES, lane0);
    bulk_commit();
    dq_out += M * D;
  };

  int stage = 0, next = 1, before = STAGES - 1, buffer = 0;
  uint32_t parity = 0, next_parity = 0, before_parity = 1;       // of the slots' barriers
  uint32_t do_stage = 0, do_parity = 0;
  uint32_t* done = nullptr;                                      // of the section of the item before
  auto tell_done = [&] {                                         // this warp's sums of the item before are in memory
    bulk_wait(); counter_add_fenced_if(done, 1, lane0 && done);
    done = nullptr;
  };
#pragma unroll 1
  while (true) {
    // told before a wait: the next item may wait for who waits for this
    if (!__shfl_sync(~0u, mbar_test(k_full, kv_parity), 0) && done) tell_done();
    mbar_wait(k_full, kv_parity);
    uint32_t told[4];
    lds_words(told, record);                                     // head, first kv row, first tile, end
    const int head = told[0], kv0 = told[1], first = told[2], end = told[3];
    if (end == 0) break;
    kv_rows = kv0 + 64 * w; row = kv_rows + warp * 16 + (lane >> 2);
    dq_out = p.dq_sum + ((uint64_t)head * tiles + first) * (M * D) + warps * (NQ * 32);
    // FIRST SCORES
    zero(dk); zero(dv); touch(dk); touch(dv);
    mbar_wait(q_full + 8 * stage, parity);
    wgmma_fence(); issue_score(s, k_smem, q_smem + stage * TILE_BYTES); wgmma_wait<0>(); touch(s);
    make_p(first, lse_smem + stage * STAT_BYTES);
    if (done) tell_done();
    mbar_wait(v_full, kv_parity); kv_parity ^= 1;

    auto finish = [&] {                                          // this warp is through with a trip
      __syncwarp(); mbar_arrive_if(through + 8 * stage, lane0);
      before = stage; before_parity = parity;
      stage = next; parity = next_parity;
      if (++next == STAGES) next = 0, next_parity ^= 1;
      do_parity ^= do_stage; do_stage ^= 1;
      buffer ^= 1;
    };
    // this warpgroup sees nothing of the first tile
    const bool blind = p.causal && kv_rows - later > first * M + M - 1;
    auto trip = [&](int tile, bool is_first, bool is_last) {
      const bool more = is_first ? tile + 1 < end : !is_last;
      const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + do_stage * TILE_BYTES;
      const uint32_t ds_tile = ds_smem + buffer * DS_BYTES;
      if (is_first && blind) {                                   // all of P of this warpgroup is 0
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = 0;
        mbar_wait(through + 8 * before, before_parity);
        store_ds(ds_tile); proxy_fence();
        if (more) mbar_wait(q_full + 8 * next, next_parity);
        wgmma_fence(); issue_score(s, k_smem, q_smem + next * TILE_BYTES);
        wgmma_wait<0>(); touch(s);
        if (more) make_p(tile + 1, lse_smem + next * STAT_BYTES);
        if (!more) { __syncwarp(); mbar_arrive_if(v_empty, lane0); }
        finish();
        return;
      }
      // ISSUE 1: dP and dV of this tile
      pack_rows(x, s); touch(x);
      mbar_wait(do_full + 8 * do_stage, do_parity);
      wgmma_fence(); issue_score(dp, v_smem, do_tile);
      issue_accumulate(dv, x, do_tile);
      wgmma_wait<1>(); touch(dp);
      if (is_last || (is_first && !more)) { __syncwarp(); mbar_arrive_if(v_empty, lane0); }
      // DS
      make_ds(delta_smem + do_stage * STAT_BYTES); touch(dp);
      // ISSUE 2: scores of the next (after an only tile of whatever lies there, not looked at), dQ of the tile before,
      // dK of this one
      if (!is_last) {
        if (more) mbar_wait(q_full + 8 * next, next_parity);
        wgmma_fence(); issue_score(s, k_smem, q_smem + next * TILE_BYTES);
        wgmma_wait<1>();
      } else wgmma_wait<0>();
      touch(dv); touch(x);                                       // dV has read P
      pack_rows(x, dp); touch(x);
      mbar_wait(through + 8 * before, before_parity);            // everybody is through with the trip before
      store_ds(ds_tile); proxy_fence();
      wgmma_fence();
      if (!is_first) issue_dq(ds_smem + (buffer ^ 1) * DS_BYTES);
      issue_accumulate(dk, x, q_tile);
      if (!is_last) { if (is_first) wgmma_wait<1>(); else wgmma_wait<2>(); touch(s); }
      // P OF NEXT
      if (more) make_p(tile + 1, lse_smem + next * STAT_BYTES);
      // DQ OUT
      if (!is_first) { wgmma_wait<1>(); touch(dp); dq_to_memory(tile - 1); }
      wgmma_wait<0>(); touch(dk); touch(x);
      finish();
    };
    int tile = first;
    trip(tile++, true, false);
#pragma unroll 1
    for (; tile < end - 1; ++tile) trip(tile, false, false);
    if (tile < end) trip(tile, false, true);

    // LAST DQ: everybody is through with the last trip
    mbar_wait(through + 8 * before, before_parity);
    wgmma_fence(); issue_dq(ds_smem + (buffer ^ 1) * DS_BYTES);
    wgmma_wait<0>(); touch(dp);
    __syncwarp(); mbar_arrive_if(k_empty, lane0);
    dq_to_memory(end - 1);

    // SUM PIECES
    int last = 1;
    const int current = lds_word(record + 16);
    if (current >= p.whole) {
      const int block = (current - p.whole) / PIECES, piece = (current - p.whole) % PIECES;
      float4* part = reinterpret_cast<float4*>(p.parts) + (uint64_t)block * PIECES * 32 * THREADS + threadIdx.x;
      float4* mine = part + piece * 32 * THREADS;
#pragma unroll
      for (int i = 0; i < 16; i++) {
        mine[i * THREADS] = make_float4(dk[4 * i], dk[4 * i + 1], dk[4 * i + 2], dk[4 * i + 3]);
        mine[(16 + i) * THREADS] = make_float4(dv[4 * i], dv[4 * i + 1], dv[4 * i + 2], dv[4 * i + 3]);
      }
      bar_sync(1, THREADS);
      const uint32_t before_this = counter_take_fenced_if(p.taken + 1 + block, threadIdx.x == 0);
      sts_word_if(pieces_through, before_this, threadIdx.x == 0);
      bar_sync(1, THREADS);
      last = lds_word(pieces_through) == PIECES - 1;
      if (last) {
        zero(dk); zero(dv);
#pragma unroll 1
        for (int n = 0; n < PIECES; n++, part += 32 * THREADS) {
#pragma unroll
          for (int i = 0; i < 16; i++) {
            const float4 x = part[i * THREADS], y = part[(16 + i) * THREADS];
            dk[4 * i] += x.x; dk[4 * i + 1] += x.y; dk[4 * i + 2] += x.z; dk[4 * i + 3] += x.w;
            dv[4 * i] += y.x; dv[4 * i + 1] += y.y; dv[4 * i + 2] += y.z; dv[4 * i + 3] += y.w;
          }
        }
      }
    }
    // STORE
    if (last) {
      lds_words(told, record);
      const int l = lane_now(), r = told[1] + 64 * w + warp * 16 + (l >> 2);
      const uint64_t dense = ((uint64_t)told[0] * rows_of_k(p) + r) * D;
      auto store = [&](uint16_t* to, const Strides& at, const float (&x)[D / 2], float by) {
        const uint64_t out = GENERAL ? place_of(at, told[0], p.keys.nheads, r) : dense;
        store_rows(to + out, GENERAL ? (int)at.row : D, x, by, r, rows_of_k(p), l);
      };
      store(p.dv, p.dv_at, dv, 1.f);
      store(p.dk, p.dk_at, dk, p.scale);
    }
    if (STORED && lds_word(record + 12) - lds_word(record + 8) <= OWN) own_are_stored();
    done = !STORED && !GENERAL && p.spare.lead ? p.spare.done + lds_word(record + 20) : nullptr;
    record = next_record(record);
  }
  tell_done();
}
