// Attention backward on Hopper (sm_90a), headdim 64, in one launch: three warpgroups of 64 kv rows each, so that two
// multiply while one makes P or dS, and a fourth that loads and does the passes before and after for other heads.
//
// Shapes   q, do [B, H, S, 64], k, v [B, H, S_k, 64] 16-bit floats; TMA boxes of 64 columns, 128-byte swizzle,
//          rows past the end are zeros. dq, dk, dv contiguous. stats, dq_sum, done: see passes.cuh
//          k_smem, v_smem [192, 64]   q_smem, do_smem [4][64, 64]   ds_smem [3][192, 64]   lse_smem, delta_smem [4][64]
//
//                  query tiles of 64, left to right →         one block = 192 kv rows of one head
//   warpgroup 0 ┌────┬────┬────┬────┐                          warpgroup w: kv rows 64 w ... + 63 of S^T, P^T, dP^T,
//     kv 0-63   │diag│    │    │    │                          dS^T, dk, dv
//   warpgroup 1 ├────┼────┼────┼────┤                          S^T = K Q^T   dP^T = V dO^T
//     kv 64-127 │ 0  │diag│    │    │                          dV += P^T dO   dK += dS^T Q
//   warpgroup 2 ├────┼────┼────┼────┤                          0: nothing to see, dS = 0 in shared memory
//    kv 128-191 │ 0  │ 0  │diag│    │
//               └─↓──┴─↓──┴─↓──┴─↓──┘
//                 dQ^T = K^T dS^T of a tile: one warpgroup in turn, a trip later, when all three have written their dS;
//                 summed in memory by vector reductions (fp32)
//
// Slots    who waits for dS of tile i - 1 knows that everybody is through with tile i - 2. So tile i + 2 of q and do
//          takes the slot of tile i - 2 (four slots), dS of tile i the place of dS of tile i - 3, which was read in
//          trip i - 2 (three buffers)
// Phases   LOADS   PASSES   TRIP: SCORES, P, DS, DQ of the tile before   STORE
// Order    lse and delta are read before the products they wait beside; dS is made of P in 32 bits, all of it before P is packed
//          into the registers of dP (ptxas reuses none of an accumulator's while one of them is read); dS leaves in one go after
//          dV and dK are issued
// Bound    5 products of 128 clocks for a 64 x 64 tile; shared memory is busy for 672 of those 640
// Measured one H200, TFLOP/s beside the best of FlashAttention-3, -4 and cuDNN in the same run: causal 512 228, 217; 2048
//          459, 414; 4096 526, 499; 16384 550, 553; full 512 368, 341; 2048 523, 500; 16384 539, 521: NOTES.md
// Limits   sm_90a, D = 64; any S and scale. S_k other than S, fewer heads of k and v, o and do not contiguous, q, k, v and
//          do of uneven heads: GENERAL=1. Sums of dq in no fixed order
// Check    python benchmarks/backward_grid.py
// build: -DHEADDIM=64
// promise: smem_bytes=215272 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=64 -DGENERAL=1
// build: -DHEADDIM=64 -DGENERAL=1 -DBF16=1
#include "passes.cuh"

constexpr int D = 64, GROUPS = 3;
constexpr int M = 64, N = 64 * GROUPS;                 // query rows of a tile, kv rows of a block
constexpr int STAGES = 4, DS_BUFFERS = 3;
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, STAT_BYTES = M * 4;
constexpr uint32_t SPACE_BYTES = 8192;                 // of each warp that does passes
constexpr int THREADS = 128 * GROUPS + 128, WARPS = 4 * GROUPS;

struct Params {
  Passes passes;
  uint16_t* dk;          // [heads, seqlen_k, D]: of each head of q, also where k has fewer
  uint16_t* dv;
  int causal;
  float scale_log2;      // softmax scale times log2(e)
  Keys keys;             // GENERAL
};
__device__ __forceinline__ int rows_of_k(const Params& p) { return GENERAL ? p.keys.seqlen : p.passes.seqlen; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
         const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES, q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES, space = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = space + 3 * SPACE_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t q_full = delta_smem + STAGES * STAT_BYTES, do_full = q_full + 8 * STAGES, k_full = do_full + 8 * STAGES, v_full = k_full + 8;
  const uint32_t ds_full = v_full + 8, pass_full = ds_full + 8 * DS_BUFFERS;     // pass_full: one for each warp of the block, if need be
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS; i++) mbar_init(ds_full + 8 * i, WARPS);
    for (int i = 0; i < HALVES; i++) mbar_init(pass_full + 8 * i, 1);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  const int seqlen = p.passes.seqlen, later = GENERAL ? p.keys.seqlen - seqlen : 0;   // row i sees the keys up to i + later, if causal
  const int tiles = (seqlen + M - 1) / M, kv_blocks = (rows_of_k(p) + N - 1) / N;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3, lane = threadIdx.x & 31, lane0 = lane == 0;
  const Item item = item_of(blockIdx.x, p.passes, tiles, kv_blocks);
  if (item.kind != MAIN) {
    PassWarp<D> pass{p.passes, base + warps * SPACE_BYTES, pass_full + 8 * warps, lane, tiles};
    const int blocks = (2 * item.wide * tiles + HALVES - 1) / HALVES;
    if (item.kind == FIRST) pass.preprocess_share(item.section, item.index, blocks, warps, HALVES);
    else pass.postprocess_share(item.section, item.index, blocks, warps, HALVES, kv_blocks);
    return;
  }
  // blocks of a section of heads: kv block 0 of each head, then kv block 1, ...: the longest first if causal
  const int kv_block = item.index / item.wide, head = item.section * p.passes.section + item.index - kv_block * item.wide, kv0 = kv_block * N;
  const int first = p.causal ? (GENERAL ? max(kv0 - later, 0) : kv0) / M : 0;

  if (w == GROUPS) {
    regs_down<32>();
    if (warp == 0) {
      // LOADS of k and v, then of q, do, lse and delta of every tile, as slots become free
      const float* stat = p.passes.stats + (uint64_t)head * tiles * (2 * M);
      const int batch = GENERAL ? head / p.keys.nheads : 0;
      const Head at = {GENERAL ? head - batch * p.keys.nheads : head, batch}, kv_at = {GENERAL ? at.head / p.keys.group : head, batch};
      mbar_expect_if(k_full, KV_BYTES, lane0); load_box(k_smem, &k_map, 0, kv0, kv_at, k_full, lane0);
      mbar_expect_if(v_full, KV_BYTES, lane0); load_box(v_smem, &v_map, 0, kv0, kv_at, v_full, lane0);
      counter_wait(p.passes.done + 2 * item.section, 2 * item.wide * tiles); proxy_fence_global();
#pragma unroll 1
      for (int tile = first; tile < tiles; ++tile) {
        const int i = tile - first, stage = i % STAGES;
        if (i >= STAGES) mbar_wait(ds_full + 8 * ((i - STAGES + 1) % DS_BUFFERS), (i - STAGES + 1) / DS_BUFFERS & 1);   // everybody is through with tile i - STAGES
        mbar_expect_if(q_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
        load_box(q_smem + stage * TILE_BYTES, &q_map, 0, tile * M, at, q_full + 8 * stage, lane0);
        bulk_load_if(lse_smem + stage * STAT_BYTES, stat + tile * (2 * M), STAT_BYTES, q_full + 8 * stage, lane0);
        mbar_expect_if(do_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
        load_box(do_smem + stage * TILE_BYTES, &do_map, 0, tile * M, at, do_full + 8 * stage, lane0);
        bulk_load_if(delta_smem + stage * STAT_BYTES, stat + tile * (2 * M) + M, STAT_BYTES, do_full + 8 * stage, lane0);
      }
    } else {
      // PASSES of other heads
      PassWarp<D> pass{p.passes, space + (warp - 1) * SPACE_BYTES, pass_full + 8 * (warp - 1), lane, tiles};
      const int blocks = item.wide * kv_blocks;
      pass.preprocess_share(item.section + 2, item.index, blocks, warp - 1, 3);
      pass.postprocess_share(item.section - 2, item.index, blocks, warp - 1, 3, kv_blocks);
    }
    return;
  }
  regs_up<160>();

  const int pair = 2 * (lane & 3);
  const int kv_rows = kv0 + 64 * w, mine = kv_rows + warp * 16 + (lane >> 2);    // this warpgroup's first kv row; this thread's: mine, mine + 8
  const int sees = p.causal ? (GENERAL ? max(kv_rows - later, 0) / M : first + w) : first;
  const int begin = kv_rows >= rows_of_k(p) ? tiles : sees;                      // first query tile that sees this warpgroup's rows
  float dk[32], dv[32], s[32], dp[32]; uint32_t pt[4][4], ds[4][4];   // pt, ds: of 16 query columns each
  const int matrix_row = 64 * w + warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // x = this warpgroup's rows of K or V times a tile of q or do, transposed: [64 kv rows, 64 query columns]
  auto issue_score = [&](float (&x)[32], uint32_t kv, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaSS<64, 0, 0>::mma(x, desc_low(kv, 16) + w * 512 + i * 2, desc_low(tile_smem, 16) + i * 2, i != 0);
    wgmma_commit();
  };
  // acc += x^T tile over 16 query columns, x^T [64 kv rows, 16 query columns] in registers; issued only
  auto accumulate = [&](float (&acc)[32], const uint32_t (&x)[4], uint32_t tile_smem, int step) {
    MmaRS<64, 1>::mma(acc, x, desc_low(tile_smem, TILE_BYTES) + step * 128, 1);
  };
  // lse or delta of the query columns of this thread's registers (stat_place)
  auto load_stats = [&](float4 (&x)[4], uint32_t stats) {
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = lds_float4(stats + j * 64 + pair * 8);
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, in 32 bits
  auto make_p = [&](int tile, const float4 (&lse)[4]) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
      const float4 l = lse[i / 8];
      s[i] = exp2_approx(fmaf(s[i], p.scale_log2, i & 4 ? (i & 1) ? -l.w : -l.z : (i & 1) ? -l.y : -l.x));
    }
    if ((p.causal && tile * M < kv_rows + 63 - later) || kv_rows + 64 > rows_of_k(p)) {
      const int row = GENERAL ? kv_rows + warp * 16 + (lane_now() >> 2) : mine, pair = 2 * ((GENERAL ? lane_now() : lane) & 3);   // GENERAL has no register left
      const int from0 = row >= rows_of_k(p) ? 1 << 30 : p.causal ? row - later - tile * M - pair : -1;           // first query column that sees the row,
      const int from1 = row + 8 >= rows_of_k(p) ? 1 << 30 : p.causal ? row + 8 - later - tile * M - pair : -1;   // less this lane's column
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
  };
  auto pack_p = [&] {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
      for (int i = 0; i < 4; i++) pt[step][i] = pack_half2(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
      touch(pt[step]);
    }
  };
  // dS^T = P^T (dP^T - delta), to 16 bits
  auto make_ds = [&](const float4 (&delta)[4]) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {                              // two columns of a row
        const float4 d = delta[step]; const int at = 8 * step + 2 * i;
        ds[step][i] = pack_half2(s[at] * (dp[at] - (i & 2 ? d.z : d.x)), s[at + 1] * (dp[at + 1] - (i & 2 ? d.w : d.y)));
      }
      touch(ds[step]);
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j + matrix_chunk), ds[j / 2]);
  };
  // dQ^T of a tile = K^T dS^T, 16 of its D rows a warp, added to dq_sum
  float* dq_out = p.passes.dq_sum + ((uint64_t)head * tiles + first) * (M * D) + warp * 512 + lane * 4;
  auto issue_dq = [&](float (&dq)[32], uint32_t ds_tile) {
#pragma unroll
    for (int i = 0; i < N / 16; i++) MmaSS<64, 1, 1>::mma(dq, desc_low(k_smem, KV_BYTES) + i * 128, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    wgmma_commit();
  };
  auto add_dq = [&](const float (&dq)[32], int tile) {
    float* out = dq_out + (tile - first) * (M * D);
#pragma unroll
    for (int j = 0; j < 8; j++)                                  // PassWarp::postprocess: columns 0 ... 31 of all D rows, then columns 32 ... 63
      red_add_float4(out + (j / 4) * 2048 + (j % 4) * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  };

  zero(dk); zero(dv);
  int buffer = 0, turn = GROUPS - 1; uint32_t ds_parity = 1;     // dS of tile i of a block is in buffer i % 3; ds_parity: of the buffer before
  mbar_wait(k_full, 0); mbar_wait(v_full, 0);
#pragma unroll 1
  for (int tile = first; tile < tiles; ++tile) {
    const int stage = (tile - first) % STAGES, before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1; const uint32_t parity = (uint32_t)(tile - first) / STAGES & 1;
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES, ds_tile = ds_smem + buffer * DS_BYTES;
    if (tile >= begin) {
      // SCORES, P, DS
      mbar_wait(q_full + 8 * stage, parity); mbar_wait(do_full + 8 * stage, parity);
      wgmma_fence(); issue_score(s, k_smem, q_tile); issue_score(dp, v_smem, do_tile);
      float4 lse[4], delta[4];
      load_stats(lse, lse_smem + stage * STAT_BYTES);
      wgmma_wait<1>(); touch(s);
      make_p(tile, lse);
      load_stats(delta, delta_smem + stage * STAT_BYTES);
      wgmma_wait<0>(); touch(dp);
      make_ds(delta); pack_p();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; step++) accumulate(dv, pt[step], do_tile, step);
#pragma unroll
      for (int step = 0; step < 4; step++) accumulate(dk, ds[step], q_tile, step);
      wgmma_commit();
      mbar_wait(ds_full + 8 * before, ds_parity);                // everybody made dS of the tile before: nobody is two trips behind
      store_ds(ds_tile);
      proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
      // DQ
      if (turn == w && tile > first) {
        float dq[32];
        wgmma_fence(); issue_dq(dq, ds_smem + before * DS_BYTES); wgmma_wait<0>(); touch(dq); touch(dv); touch(dk);
        add_dq(dq, tile - 1);
      }
      wgmma_wait<0>(); touch(dv); touch(dk);
    } else {                                                     // nothing to see: dS = 0
      mbar_wait(ds_full + 8 * before, ds_parity);
      const uint32_t none[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j + matrix_chunk), none);
      proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
    }
    if (turn == w && tile > first && tile < begin) {
      float dq[32];
      wgmma_fence(); issue_dq(dq, ds_smem + before * DS_BYTES); wgmma_wait<0>(); touch(dq);
      add_dq(dq, tile - 1);
    }
    turn = turn == GROUPS - 1 ? 0 : turn + 1;
    if (buffer == 0) ds_parity ^= 1;
    buffer = buffer == DS_BUFFERS - 1 ? 0 : buffer + 1;
  }
  if (turn == w) {
    const int before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1;
    mbar_wait(ds_full + 8 * before, ds_parity);
    float dq[32];
    wgmma_fence(); issue_dq(dq, ds_smem + before * DS_BYTES); wgmma_wait<0>(); touch(dq);
    add_dq(dq, tiles - 1);
  }

  // STORE
  const int row = GENERAL ? kv_rows + warp * 16 + (lane_now() >> 2) : mine;
  const uint64_t out = ((uint64_t)head * rows_of_k(p) + row) * D;
  store_rows(p.dv + out, D, dv, 1.f, row, rows_of_k(p), lane_now()); store_rows(p.dk + out, D, dk, p.passes.scale, row, rows_of_k(p), lane_now());
  bar_sync(1, 128 * GROUPS);
  if (threadIdx.x == 0) counter_add(p.passes.done + 2 * item.section + 1, 1);
}
