// Attention backward on Hopper (sm_90a), headdim 64, without a mask: two warpgroups, two times 64 kv rows each.
//
// Changed against backward.cu
//   256 kv rows a block instead of 128: half the reductions of dq and half the loads of q and do for the same products
//   a warpgroup alternates between two sub-blocks of 64 kv rows and has products of one in flight under the
//   exponentials of the other; K and V stay in shared memory
//   the warpgroups take turns at dQ of a tile, all of its 64 query columns
//
// Shapes   q, k, v, do, dk, dv [B, H, S, 64] contiguous fp16; TMA boxes of 64 columns, 128-byte swizzle,
//          rows past S are zeros
//          stats, dq_sum: see passes.cu
//          k_smem, v_smem [256, 64]   q_smem, do_smem [4][64, 64]   ds_smem [3][256, 64]   lse_smem, delta_smem [4][64]
//
//                         query tiles of 64, left to right →
//   warpgroup 0, a: kv   0-63  ┌────┬────┬────┐                S^T = K Q^T   dP^T = V dO^T
//   warpgroup 1, a: kv  64-127 ├────┼────┼────┤                dV += P^T dO   dK += dS^T Q
//   warpgroup 1, b: kv 128-191 ├────┼────┼────┤                a and b so that the diagonal of a causal block is shared
//   warpgroup 0, b: kv 192-255 ├────┼────┼────┤                out evenly
//                              └─↓──┴─↓──┴─↓──┘
//                 dQ^T = K^T dS^T of a tile: one warpgroup in turn, a trip later, when both have written their dS;
//                 summed in memory by vector reductions (fp32)
//
// Slots    who waits for dS of tile i - 1 knows that everybody is through with tile i - 2. So tile i + 2 of q and do
//          takes the slot of tile i - 2 (four slots), dS of tile i the place of dS of tile i - 3, which was read in
//          trip i - 2 (three buffers)
// Phases   LOAD   FIRST SCORES   TRIP in four steps (below), DQ of the tile before   STORE
// Bound    as backward.cu: 5 products of 128 clocks for a 64 x 64 tile; shared memory is busy for 672 of those 640
// Measured one H200, full attention, TFLOP/s beside FlashAttention-3 of the same run: S = 512 341, 332;
//          S = 1024 423, 429; S = 4096 486, 528; S = 16384 507, 532: NOTES.md
// Limits   sm_90a, fp16, D = 64, equal lengths of q and k; any S and scale, causal or not; sums of dq in no fixed order
// Check    python benchmarks/backward_grid.py --masks full --build "pair=pair section=16"
// build: -DHEADDIM=64
// promise: smem_bytes=231528 registers=255 spills=0 warnings=0 blocks=1
#include "rows.cuh"

constexpr int D = 64, M = 64, N = 256;
constexpr int STAGES = 4, DS_BUFFERS = 3;
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, STAT_BYTES = M * 4;
constexpr int THREADS = 256, WARPS = 8;

struct Params {
  const float* stats;    // [heads, tiles, 2, 64]: log2(e) * lse, delta
  float* dq_sum;         // [heads, tiles, 64 * D], zeros before
  uint16_t* dk;          // [heads, seqlen, D] fp16
  uint16_t* dv;
  int seqlen;
  int heads;             // batch * heads
  int section;           // heads that are walked together, so that their q, do and dq_sum stay in L2
  int causal;
  float scale;           // softmax scale
  float scale_log2;      // the same times log2(e)
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
         const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map,
         const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t k_smem = smem_u32(smem), v_smem = k_smem + KV_BYTES;
  const uint32_t q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES;
  const uint32_t lse_smem = ds_smem + DS_BUFFERS * DS_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t q_full = delta_smem + STAGES * STAT_BYTES, do_full = q_full + 8 * STAGES;
  const uint32_t k_full = do_full + 8 * STAGES, v_full = k_full + 8, ds_full = v_full + 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS; i++) mbar_init(ds_full + 8 * i, WARPS);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  // blocks of a section of heads: kv block 0 of each head, then kv block 1, ...: the longest first if causal
  const int tiles = (p.seqlen + M - 1) / M, kv_blocks = (p.seqlen + N - 1) / N;
  const int section = blockIdx.x / (p.section * kv_blocks);
  const int in_section = blockIdx.x - section * p.section * kv_blocks;
  const int wide = min(p.section, p.heads - section * p.section), kv_block = in_section / wide;
  const int head = section * p.section + in_section - kv_block * wide, kv0 = kv_block * N;
  const int first = p.causal ? kv0 / M : 0;

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  const int sub_a = w, sub_b = 3 - w;                            // this warpgroup's sub-blocks
  float s[32], dp[32], dk_a[32], dv_a[32], dk_b[32], dv_b[32]; uint32_t p_a[16], p_b[16], ds_a[16], ds_b[16];
  const int matrix_row = warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // LOAD: warpgroup 0 asks for q and k, warpgroup 1 for do and v, by lane 0 of its first warp
  const float* stat = p.stats + ((uint64_t)head * tiles + first) * 128 + M * w;
  auto load_tile = [&](int tile, int stage) {
    const TensorMap* map = w ? &do_map : &q_map;
    const uint32_t full = (w ? do_full : q_full) + 8 * stage, tile_smem = (w ? do_smem : q_smem) + stage * TILE_BYTES;
    mbar_expect_if(full, TILE_BYTES + STAT_BYTES, lane0);
    tma_load_if(tile_smem, map, 0, tile * M, head, full, lane0);
    const uint32_t stat_smem = (w ? delta_smem : lse_smem) + stage * STAT_BYTES;
    bulk_load_if(stat_smem, stat + (tile - first) * (2 * M), STAT_BYTES, full, lane0);
  };
  if (warp == 0) {
    const uint32_t full = w ? v_full : k_full;
    mbar_expect_if(full, KV_BYTES, lane0);
    tma_load_if(w ? v_smem : k_smem, w ? &v_map : &k_map, 0, kv0, head, full, lane0);
    load_tile(first, 0);
    if (first + 1 < tiles) load_tile(first + 1, 1);
  }

  // x = a sub-block of K or V times a tile of q or do, transposed: [64 kv rows, 64 query columns]
  auto issue_score = [&](float (&x)[32], uint32_t kv_smem, int sub, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      MmaSS<64, 0, 0>::mma(x, desc_low(kv_smem, 16) + sub * 512 + i * 2, desc_low(tile_smem, 16) + i * 2, i != 0);
    wgmma_commit();
  };
  // acc += x^T tile, x^T [64 kv rows, 64 query columns] in registers
  auto issue_accumulate = [&](float (&acc)[32], const uint32_t (&x)[16], uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaRS<64, 1>::mma(acc, x + 4 * i, desc_low(tile_smem, TILE_BYTES) + i * 128, 1);
    wgmma_commit();
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, to fp16
  auto make_p = [&](uint32_t (&out)[16], int tile, int sub, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 l = lds_float2(lse + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++)
        s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, (i & 1) ? -l.y : -l.x));
    }
    const int rows0 = kv0 + 64 * sub, row = rows0 + warp * 16 + (lane >> 2);
    if ((p.causal && tile * M < rows0 + 63) || rows0 + 64 > p.seqlen) {
      // first query column that sees row, row + 8, less this lane's column
      const int from0 = row >= p.seqlen ? 1 << 30 : p.causal ? row - tile * M - pair : -1;
      const int from1 = row + 8 >= p.seqlen ? 1 << 30 : p.causal ? row + 8 - tile * M - pair : -1;
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
    pack_rows(out, s);
  };
  // dS^T = P^T (dP^T - delta), to fp16 in registers and in ds_smem
  auto make_ds = [&](uint32_t (&out)[16], const uint32_t (&pt)[16], int sub, uint32_t delta, uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta + (8 * j + pair) * 4);
      const float2 top = unpack_half2(pt[2 * j]), low = unpack_half2(pt[2 * j + 1]);
      out[2 * j] = pack_half2(top.x * (dp[4 * j] - d.x), top.y * (dp[4 * j + 1] - d.y));
      out[2 * j + 1] = pack_half2(low.x * (dp[4 * j + 2] - d.x), low.y * (dp[4 * j + 3] - d.y));
      if (j & 1)
        store_matrices(swizzled(ds_tile, 64 * sub + matrix_row, j - 1 + matrix_chunk), out + 2 * j - 2);
    }
  };
  float* dq_out = p.dq_sum + ((uint64_t)head * tiles + first) * (M * D) + warp * 512 + lane * 4;
  // dQ^T of a tile = K^T dS^T, 16 of its D rows a warp, to dq_sum
  auto add_dq = [&](uint32_t ds_tile) {
    float dq[32];
    const uint32_t k = desc_low(k_smem, KV_BYTES), ds_desc = desc_low(ds_tile, DS_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; i++) MmaSS<64, 1, 1>::mma(dq, k + i * 128, ds_desc + i * 128, i != 0);
    wgmma_commit(); wgmma_wait<0>(); touch(dq);
#pragma unroll
    for (int j = 0; j < 8; j++)                                  // passes.cu: all D rows of columns 0-31, then of 32-63
      red_add_float4(dq_out + (j / 4) * 2048 + (j % 4) * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  };

  // FIRST SCORES
  zero(dk_a); zero(dv_a); zero(dk_b); zero(dv_b);
  mbar_wait(k_full, 0); mbar_wait(v_full, 0); mbar_wait(q_full, 0);
  wgmma_fence(); issue_score(s, k_smem, sub_a, q_smem); wgmma_wait<0>(); touch(s);
  make_p(p_a, first, sub_a, lse_smem); touch(p_a);

  int stage = 0, next = 1, buffer = 0, before = DS_BUFFERS - 1;
  uint32_t parity = 0, next_parity = 0, ds_parity = 1;           // of do of this tile, q of the next, dS before
#pragma unroll 1
  for (int tile = first; tile < tiles; ++tile) {
    const int more = tile + 1 < tiles;
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES;
    const uint32_t ds_tile = ds_smem + buffer * DS_BYTES;
    const uint32_t lse = lse_smem + stage * STAT_BYTES, delta = delta_smem + stage * STAT_BYTES;
    // 1: dP_a, S_b, dV_a; dS_a under the last two
    mbar_wait(do_full + 8 * stage, parity);
    wgmma_fence(); issue_score(dp, v_smem, sub_a, do_tile); issue_score(s, k_smem, sub_b, q_tile);
    issue_accumulate(dv_a, p_a, do_tile);
    wgmma_wait<2>(); touch(dp);
    mbar_wait(ds_full + 8 * before, ds_parity);                  // everybody made dS of the tile before
    make_ds(ds_a, p_a, sub_a, delta, ds_tile); touch(ds_a);
    wgmma_wait<0>(); touch(s); touch(dv_a);
    // 2: dP_b, dK_a; P_b under them
    wgmma_fence(); issue_score(dp, v_smem, sub_b, do_tile); issue_accumulate(dk_a, ds_a, q_tile);
    make_p(p_b, tile, sub_b, lse); touch(p_b);
    if (more) mbar_wait(q_full + 8 * next, next_parity);
    wgmma_wait<0>(); touch(dp); touch(dk_a);
    // 3: S_a of the next tile (after the last tile of whatever lies there, never looked at), dV_b; dS_b under them
    wgmma_fence(); issue_score(s, k_smem, sub_a, q_smem + next * TILE_BYTES); issue_accumulate(dv_b, p_b, do_tile);
    make_ds(ds_b, p_b, sub_b, delta, ds_tile); touch(ds_b);
    proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
    wgmma_wait<0>(); touch(s); touch(dv_b);
    // 4: dK_b; P_a of the next tile under it; then dQ of the tile before
    wgmma_fence(); issue_accumulate(dk_b, ds_b, q_tile);
    if (warp == 0 && tile + 2 < tiles) load_tile(tile + 2, (stage + 2) % STAGES);
    if (more) make_p(p_a, tile + 1, sub_a, lse_smem + next * STAT_BYTES);
    wgmma_wait<0>(); touch(dk_b);
    if (tile > first) {
      if ((tile & 1) == w) add_dq(ds_smem + before * DS_BYTES);
      dq_out += M * D;
    }
    wgmma_wait<0>(); touch(dk_b); touch(p_a);
    stage = next; parity = next_parity;
    if (++next == STAGES) next = 0, next_parity ^= 1;
    if (before == DS_BUFFERS - 1) ds_parity ^= 1;
    before = buffer;
    if (++buffer == DS_BUFFERS) buffer = 0;
  }
  mbar_wait(ds_full + 8 * before, ds_parity);
  if ((tiles & 1) == w) add_dq(ds_smem + before * DS_BYTES);

  // STORE
  const int store_lane = lane_now();
#pragma unroll
  for (int b = 0; b < 2; b++) {
    const int row = kv0 + 64 * (b ? sub_b : sub_a) + warp * 16 + (store_lane >> 2);
    const uint64_t out = ((uint64_t)head * p.seqlen + row) * D;
    store_rows(p.dv + out, D, b ? dv_b : dv_a, 1.f, row, p.seqlen, store_lane);
    store_rows(p.dk + out, D, b ? dk_b : dk_a, p.scale, row, p.seqlen, store_lane);
  }
}
