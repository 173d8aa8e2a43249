// Attention backward on Hopper (sm_90a), headdim 128: five products a tile in one kernel; the scores of the next query
// tile are ahead of the gradients of this one, dQ of the tile before is behind them.
//
// Shapes   q, do [B, H, S, 128], k, v [B, H, S_k, 128] 16-bit floats; TMA boxes of 64 columns, 128-byte swizzle, rows
//          past the end are zeros. dq, dk, dv contiguous. stats, dq_sum: see passes.cu
//          k_smem, v_smem [128, D]   q_smem, do_smem [3][64, D]   ds_smem [2][128, 64]   dq_smem 8 warps x 16 x 64 floats
//
//            query tiles of 64, left to right →         one item = 128 kv rows of one head
//   WG 0    ┌────┬────┬────┬────┐   warpgroup w: kv rows 64 w ... + 63 of S^T, P^T, dP^T, dS^T, dk, dv
//   kv 0-63 │diag│    │    │    │   S^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dS^T Q
//   WG 1    ├────┼────┼────┼────┤   dQ^T = K^T dS^T needs both halves of dS: they meet in ds_smem.
//   64-127  │ // │diag│    │    │   warpgroup w has D rows 64 w ... + 63 of dQ^T
//           └─↓──┴─↓──┴─↓──┴─↓──┘
//             dq tiles, summed in memory by bulk operations (fp32), each warp its own piece
//
// Trip     dP and dV of tile i and the scores of tile i + 1 are issued together, dS is made under the last two; then dQ
//          of tile i - 1 and dK of tile i, and P of tile i + 1 is made under them. P crosses trips in 16 bits, as the A
//          operand it is
// Loads    no producer warp: the one barrier of a trip also proves that everybody is through with the trip before, so
//          the slot of tile i - 1 takes tile i + 2. 256 threads may then hold 255 registers each
// Items    a kv block of a head, or a piece of its query tiles. A block of the grid stays and takes one item after the
//          other; v, q and do of the next one arrive under the last dQ, its k while dk and dv are stored. The first trip
//          has no dQ and the last one no scores. With full attention the kv blocks of the last, partly filled wave are
//          PIECES items each: who comes last sums their dk and dv, in order
// Phases   FIRST SCORES   TRIP: ISSUE 1, DS, ISSUE 2, LOAD, P OF NEXT, DQ OUT   LAST DQ   SUM PIECES   STORE
// Bound    10 B H S^2 D / 2 flops (causal) at 4096 per clock and SM: 1.39 ms at 1.83 GHz on 132 SMs for hdim128_seq8k.
//          Shared memory per trip, against tensor clocks: NOTES.md
// Measured NOTES.md
// Limits   sm_90a, D = 128; any S and scale. S_k other than S, fewer heads of k and v, uneven heads: GENERAL=1. Sums of
//          dq in no fixed order
// Check    python benchmarks/backward_grid.py --headdim 128
// build: -DHEADDIM=128
// promise: smem_bytes=231000 registers=255 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DGENERAL=1 -DBF16=1
// promise: smem_bytes=231000 registers=255 spills=0 warnings=0 blocks=1
#include "rows.cuh"

// ---------------------------------------------------------------------- shape of this build (by -D)
#ifndef HEADDIM
#define HEADDIM 128
#endif
static_assert(HEADDIM == 128, "this schedule is for headdim 128");

constexpr int D = HEADDIM, PANELS = D / 64;
constexpr int M = 64, N = 128;                           // query rows of a tile, kv rows of a block
constexpr int STAGES = 3, DS_BUFFERS = 2;                // tiles of q and do: in use, of the scores ahead, arriving
constexpr int NQ = D / 4;                                // registers of dQ^T: 64 x 64 a warpgroup
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2;
constexpr uint32_t DQ_WARP_BYTES = NQ * 32 * 4, STAT_BYTES = M * 4;
constexpr uint32_t KV_PANEL = N * 128, TILE_PANEL = M * 128;
constexpr int THREADS = 256, WARPS = 8;
constexpr int PIECES = 2;

struct Params {
  const float* stats;    // [heads, tiles, 2, 64]: log2(e) * lse, delta
  float* dq_sum;         // [heads, tiles, 64 * D], zeros before
  uint16_t* dk;          // [heads, seqlen, D] fp16
  uint16_t* dv;
  uint32_t* taken;       // items taken beside the first of each block; then, for each kv block in pieces, its pieces that
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
};
// of k and v
__device__ __forceinline__ int rows_of_k(const Params& p) { return GENERAL ? p.keys.seqlen : p.seqlen; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
         const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES;
  const uint32_t q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES, dq_smem = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = dq_smem + WARPS * DQ_WARP_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t q_full = delta_smem + STAGES * STAT_BYTES, do_full = q_full + 8 * STAGES;
  const uint32_t k_full = do_full + 8 * STAGES, v_full = k_full + 8, ds_full = v_full + 8;
  const uint32_t next_item = ds_full + 8 * DS_BUFFERS, pieces_through = next_item + 4;   // words of one thread to all
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS; i++) mbar_init(ds_full + 8 * i, WARPS);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  float s[32], dp[32], dk[D / 2], dv[D / 2], dq[NQ]; uint32_t pt[16], p_next[16], ds[16];
  // where a lane points for 8 x 8 matrices: lanes 8 m ... 8 m + 7 are the rows of matrix m, at rows + 8 (m % 2),
  // chunk + m / 2
  const int matrix_row = 64 * w + warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // kv blocks of a section of heads: the first of each head, then the second, ...: the longest first if causal
  const int later = GENERAL ? p.keys.seqlen - p.seqlen : 0;   // row i sees the keys up to i + later, if causal
  const int tiles = (p.seqlen + M - 1) / M, kv_blocks = (rows_of_k(p) + N - 1) / N;
  const int items = p.whole + (p.heads * kv_blocks - p.whole) * PIECES;
  struct Item { int head, kv0, first, end; Head at, kv_at; };    // query tiles first ... end - 1
  auto item_of = [&](int index) {
    Item x;
    const int pieces = index < p.whole ? 1 : PIECES, piece = index < p.whole ? 0 : (index - p.whole) % PIECES;
    const int block = index < p.whole ? index : p.whole + (index - p.whole) / PIECES;
    const int section = block / (p.section * kv_blocks), in_section = block - section * p.section * kv_blocks;
    const int wide = min(p.section, p.heads - section * p.section), kv_block = in_section / wide;
    x.head = section * p.section + in_section - kv_block * wide; x.kv0 = kv_block * N;
    const int from = p.causal ? (GENERAL ? max(x.kv0 - later, 0) : x.kv0) / M : 0, all = tiles - from;
    x.first = from + all * piece / pieces; x.end = from + all * (piece + 1) / pieces;
    const int batch = GENERAL ? x.head / p.keys.nheads : 0;
    x.at = {x.head - batch * (GENERAL ? p.keys.nheads : 0), batch};
    x.kv_at = {GENERAL ? x.at.head / p.keys.group : x.head, batch};
    return x;
  };

  // LOAD: warpgroup 0 asks for q and k, warpgroup 1 for do and v, by lane 0 of its first warp
  auto load_tile = [&](const Item& x, int tile, int stage) {
    const TensorMap* map = w ? &do_map : &q_map;
    const uint32_t full = (w ? do_full : q_full) + 8 * stage, dst = (w ? do_smem : q_smem) + stage * TILE_BYTES;
    mbar_expect_if(full, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
    for (int c = 0; c < PANELS; c++) load_box(dst + c * TILE_PANEL, map, c * 64, tile * M, x.at, full, lane0);
    const float* stat = p.stats + ((uint64_t)x.head * tiles + tile) * (2 * M) + M * w;
    bulk_load_if((w ? delta_smem : lse_smem) + stage * STAT_BYTES, stat, STAT_BYTES, full, lane0);
  };
  auto load_first = [&](const Item& x, int stage, int next) {    // its first two tiles
    load_tile(x, x.first, stage);
    if (x.first + 1 < x.end) load_tile(x, x.first + 1, next);
  };
  auto load_kv = [&](const Item& x) {
    const uint32_t full = w ? v_full : k_full, dst = w ? v_smem : k_smem;
    const TensorMap* map = w ? &v_map : &k_map;
    mbar_expect_if(full, KV_BYTES, lane0);
#pragma unroll
    for (int c = 0; c < PANELS; c++) load_box(dst + c * KV_PANEL, map, c * 64, x.kv0, x.kv_at, full, lane0);
  };

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
      MmaSS<64, 1, 1>::mma(dq, a, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    }
    wgmma_commit();
  };
  int kv_rows = 0, row = 0;                              // this warpgroup's first kv row; this thread's: row, row + 8
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, to fp16
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
    pack_rows(p_next, s);
  };
  auto step_p = [&] {                                            // dV has read the P before
#pragma unroll
    for (int i = 0; i < 16; i++) pt[i] = p_next[i];
    touch(pt);
  };
  // dS^T = P^T (dP^T - delta), to fp16 in registers
  auto make_ds = [&](uint32_t delta) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta + (8 * j + pair) * 4);
      const float2 top = unpack_half2(pt[2 * j]), low = unpack_half2(pt[2 * j + 1]);
      ds[2 * j] = pack_half2(top.x * (dp[4 * j] - d.x), top.y * (dp[4 * j + 1] - d.y));
      ds[2 * j + 1] = pack_half2(low.x * (dp[4 * j + 2] - d.x), low.y * (dp[4 * j + 3] - d.y));
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 1; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j - 1 + matrix_chunk), ds + 2 * j - 2);
  };
  // this warp's piece of dQ^T into dq_smem, from there added to dq_sum while the next trip runs
  float* dq_out = nullptr;
  const uint32_t dq_warp = dq_smem + warps * DQ_WARP_BYTES;
  auto dq_to_memory = [&] {
    bulk_wait_read(); __syncwarp();                      // the bulk reduction of the trip before has read dq_smem
#pragma unroll
    for (int j = 0; j < NQ / 4; j++)
      sts_float4(dq_warp + (j * 32 + lane) * 16, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    proxy_fence(); __syncwarp();
    bulk_add_if(dq_out, dq_warp, DQ_WARP_BYTES, lane0); bulk_commit();
    dq_out += M * D;
  };

  int index = blockIdx.x;
  {
    const Item item = item_of(index);
    if (warp == 0) { load_kv(item); load_first(item, 0, 1); }
  }
  int stage = 0, next = 1, buffer = 0, before = DS_BUFFERS - 1;
  uint32_t parity = 0, next_parity = 0;                          // of do of this tile; of q of the next one
  uint32_t ds_parity = 1, kv_parity = 0;
#pragma unroll 1
  while (index < items) {
    const int current = index;
    const Item item = item_of(current);
    kv_rows = item.kv0 + 64 * w; row = kv_rows + warp * 16 + (lane >> 2);
    dq_out = p.dq_sum + ((uint64_t)item.head * tiles + item.first) * (M * D) + warps * (NQ * 32);
    // FIRST SCORES
    zero(dk); zero(dv); touch(dk); touch(dv);
    mbar_wait(k_full, kv_parity); mbar_wait(q_full + 8 * stage, parity);
    wgmma_fence(); issue_score(s, k_smem, q_smem + stage * TILE_BYTES); wgmma_wait<0>(); touch(s);
    make_p(item.first, lse_smem + stage * STAT_BYTES); step_p();
    mbar_wait(v_full, kv_parity); kv_parity ^= 1;

    // LOAD into the slot of the last tile that everybody is through with
    auto load_ahead = [&](int tile) {
      if (warp == 0 && tile + 2 < item.end)
        load_tile(item, tile + 2, stage + 2 >= STAGES ? stage + 2 - STAGES : stage + 2);
    };
    auto finish = [&] {                                          // this warp is through with a trip
      __syncwarp(); mbar_arrive_if(ds_full, lane0);
      stage = next; parity = next_parity;
      if (++next == STAGES) next = 0, next_parity ^= 1;
      ds_parity ^= 1;
      before = buffer;
      if (++buffer == DS_BUFFERS) buffer = 0;
    };
    const bool blind = p.causal && kv_rows - later > item.first * M + M - 1;   // this warpgroup sees nothing of the first tile
    auto trip = [&](int tile, bool is_first, bool is_last) {
      const bool more = is_first ? tile + 1 < item.end : !is_last;
      const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES;
      const uint32_t ds_tile = ds_smem + buffer * DS_BYTES;
      const bool takes = threadIdx.x == 0 && (is_last || (is_first && !more));   // the next item, as late as its loads allow
      const uint32_t taken = is_first || is_last ? counter_take_if(p.taken, takes) : 0;
      if (is_first && blind) {                                   // all of P of this warpgroup is 0
#pragma unroll
        for (int i = 0; i < 16; i++) ds[i] = 0;
        mbar_wait(ds_full, ds_parity);
        store_ds(ds_tile); proxy_fence();
        if (more) mbar_wait(q_full + 8 * next, next_parity);
        wgmma_fence(); issue_score(s, k_smem, q_smem + next * TILE_BYTES);
        load_ahead(tile);
        wgmma_wait<0>(); touch(s);
        if (more) make_p(tile + 1, lse_smem + next * STAT_BYTES);
        step_p();
        sts_word_if(next_item, gridDim.x + taken, takes);
        finish();
        return;
      }
      // ISSUE 1: dP and dV of this tile, scores of the next (after an only tile of whatever lies there, not looked at)
      mbar_wait(do_full + 8 * stage, parity);
      wgmma_fence(); issue_score(dp, v_smem, do_tile);
      issue_accumulate(dv, pt, do_tile);
      if (!is_last) {
        if (more) mbar_wait(q_full + 8 * next, next_parity);
        wgmma_fence(); issue_score(s, k_smem, q_smem + next * TILE_BYTES);
        wgmma_wait<2>();
      } else wgmma_wait<1>();
      touch(dp);
      // DS
      make_ds(delta_smem + stage * STAT_BYTES); touch(ds);
      mbar_wait(ds_full, ds_parity);                             // everybody is through with the trip before
      store_ds(ds_tile); proxy_fence();
      wgmma_wait<0>(); touch(dv);
      if (!is_last) touch(s);
      // ISSUE 2: dQ of the tile before, dK of this one
      wgmma_fence();
      if (!is_first) issue_dq(ds_smem + before * DS_BYTES);
      issue_accumulate(dk, ds, q_tile);
      if (!is_last) load_ahead(tile);
      // P OF NEXT
      if (more) make_p(tile + 1, lse_smem + next * STAT_BYTES);
      // DQ OUT
      if (!is_first) { wgmma_wait<1>(); touch(dq); dq_to_memory(); }
      wgmma_wait<0>(); touch(dk); touch(dv);
      if (!is_last) step_p();
      if (is_first || is_last) sts_word_if(next_item, gridDim.x + taken, takes);
      finish();
    };
    int tile = item.first;
    trip(tile++, true, false);
#pragma unroll 1
    for (; tile < item.end - 1; ++tile) trip(tile, false, false);
    if (tile < item.end) trip(tile, false, true);

    // LAST DQ, LOAD NEXT ITEM: everybody is through with the last trip
    mbar_wait(ds_full, ds_parity);
    wgmma_fence(); issue_dq(ds_smem + before * DS_BYTES);
    index = lds_word(next_item);
    if (warp == 0 && index < items) {
      const Item x = item_of(index);
      if (w) load_kv(x);
      load_first(x, stage, next);
    }
    wgmma_wait<0>(); touch(dq);
    bar_sync(1, THREADS);                                        // everybody is through with k_smem
    if (warps == 0 && index < items) load_kv(item_of(index));
    dq_to_memory();

    // SUM PIECES
    int last = 1;
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
      const uint32_t through = counter_take_fenced_if(p.taken + 1 + block, threadIdx.x == 0);
      sts_word_if(pieces_through, through, threadIdx.x == 0);
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
      const uint64_t out = ((uint64_t)item.head * rows_of_k(p) + row) * D;
      store_rows(p.dv + out, D, dv, 1.f, row, rows_of_k(p), lane);
      store_rows(p.dk + out, D, dk, p.scale, row, rows_of_k(p), lane);
    }
  }
  bulk_wait_read();
}
