// Attention backward on Hopper (sm_90a), headdim 64, for short causal sequences: three warpgroups of 64 kv rows.
//
// Changed against backward.cu
//   three warpgroups of 168 registers instead of two of 255: K and V stay in shared memory, no scores are ahead;
//   two warpgroups may multiply while one makes P or dS
//   query tiles that lie above a warpgroup's own diagonal cost it nothing: at S = 512 that is a fifth of all
//   the warpgroups take turns at dQ of a tile, all of its 64 query columns
//
// Shapes   q, k, v, do, dk, dv [B, H, S, 64] contiguous fp16; TMA boxes of 64 columns, 128-byte swizzle,
//          rows past S are zeros
//          stats, dq_sum: see passes.cu; stats with STATS_BY_LANE
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
// Phases   LOAD   TRIP: SCORES, P, DS, DQ of the tile before   STORE
// Bound    as backward.cu: 5 products of 128 clocks for a 64 x 64 tile; shared memory is busy for 672 of those 640
// Measured one H200, causal, TFLOP/s beside FlashAttention-3 of the same run: S = 512 207, 196; S = 1024 310, 305;
//          S = 2048 399, 416: NOTES.md
// Limits   sm_90a, fp16, D = 64, equal lengths of q and k; any S and scale, causal or not; sums of dq in no fixed order
// Check    python benchmarks/backward_grid.py --build three=three
// build: -DHEADDIM=64
// promise: smem_bytes=190568 registers=168 spills=0 warnings=0 blocks=1
#include "rows.cuh"

constexpr int D = 64, GROUPS = 3;
constexpr int M = 64, N = 64 * GROUPS;                 // query rows of a tile, kv rows of a block
constexpr int STAGES = 4, DS_BUFFERS = 3;
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, STAT_BYTES = M * 4;
constexpr int THREADS = 128 * GROUPS, WARPS = 4 * GROUPS;

struct Params {
  const float* stats;    // [heads, tiles, 2, 64]: log2(e) * lse, delta; columns by lane
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
  const int seqlen = p.seqlen, tiles = (seqlen + M - 1) / M, kv_blocks = (seqlen + N - 1) / N;
  const int section = blockIdx.x / (p.section * kv_blocks);
  const int in_section = blockIdx.x - section * p.section * kv_blocks;
  const int wide = min(p.section, p.heads - section * p.section), kv_block = in_section / wide;
  const int head = section * p.section + in_section - kv_block * wide, kv0 = kv_block * N;
  const int first = p.causal ? kv0 / M : 0;

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  const int kv_rows = kv0 + 64 * w;                              // this warpgroup's first kv row
  const int row = kv_rows + warp * 16 + (lane >> 2);             // this thread's rows: row, row + 8
  const int begin = kv_rows >= seqlen ? tiles : first + (p.causal ? w : 0);   // first tile that sees kv_rows
  float dk[32], dv[32], s[32], dp[32]; uint32_t pt[16], ds[16];
  const int matrix_row = 64 * w + warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // LOAD: warpgroup 0 asks for q and k, warpgroup 1 for do and v, by lane 0 of its first warp
  const bool loads = warp == 0 && w < 2;
  const float* stat = p.stats + ((uint64_t)head * tiles + first) * 128 + M * w;
  auto load_tile = [&](int tile) {
    const int stage = (tile - first) % STAGES;
    const TensorMap* map = w ? &do_map : &q_map;
    const uint32_t full = (w ? do_full : q_full) + 8 * stage, tile_smem = (w ? do_smem : q_smem) + stage * TILE_BYTES;
    mbar_expect_if(full, TILE_BYTES + STAT_BYTES, lane0);
    tma_load_if(tile_smem, map, 0, tile * M, head, full, lane0);
    const uint32_t stat_smem = (w ? delta_smem : lse_smem) + stage * STAT_BYTES;
    bulk_load_if(stat_smem, stat + (tile - first) * (2 * M), STAT_BYTES, full, lane0);
  };
  if (loads) {
    const uint32_t full = w ? v_full : k_full;
    mbar_expect_if(full, KV_BYTES, lane0);
    tma_load_if(w ? v_smem : k_smem, w ? &v_map : &k_map, 0, kv0, head, full, lane0);
    load_tile(first);
    if (first + 1 < tiles) load_tile(first + 1);
  }

  // x = this warpgroup's rows of K or V times a tile of q or do, transposed: [64 kv rows, 64 query columns]
  auto issue_score = [&](float (&x)[32], uint32_t kv_smem, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      MmaSS<64, 0, 0>::mma(x, desc_low(kv_smem, 16) + w * 512 + i * 2, desc_low(tile_smem, 16) + i * 2, i != 0);
    wgmma_commit();
  };
  // acc += x^T tile, x^T [64 kv rows, 64 query columns] in registers
  auto issue_accumulate = [&](float (&acc)[32], const uint32_t (&x)[16], uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaRS<64, 1>::mma(acc, x + 4 * i, desc_low(tile_smem, TILE_BYTES) + i * 128, 1);
    wgmma_commit();
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, to fp16
  auto make_p = [&](int tile, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float4 l = lds_float4(lse + j * 32 + pair * 8);      // query columns of s[4 j] ... s[4 j + 7]: passes.cu
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float of_column = i < 4 ? (i & 1) ? l.y : l.x : (i & 1) ? l.w : l.z;
        s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, -of_column));
      }
    }
    if ((p.causal && tile * M < kv_rows + 63) || kv_rows + 64 > seqlen) {
      // first query column that sees row, row + 8, less this lane's column
      const int from0 = row >= seqlen ? 1 << 30 : p.causal ? row - tile * M - pair : -1;
      const int from1 = row + 8 >= seqlen ? 1 << 30 : p.causal ? row + 8 - tile * M - pair : -1;
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
    pack_rows(pt, s);
  };
  // dS^T = P^T (dP^T - delta), to fp16 in registers and in ds_smem
  auto make_ds = [&](uint32_t delta, uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float4 d = lds_float4(delta + j * 32 + pair * 8);
#pragma unroll
      for (int i = 0; i < 4; i++) {                              // columns 8 j of row g and g + 8, then columns 8 j + 8
        const float2 x = unpack_half2(pt[2 * j + i]);
        ds[2 * j + i] = pack_half2(x.x * (dp[4 * j + 2 * i] - (i < 2 ? d.x : d.z)),
                                   x.y * (dp[4 * j + 2 * i + 1] - (i < 2 ? d.y : d.w)));
      }
      store_matrices(swizzled(ds_tile, matrix_row, j + matrix_chunk), ds + 2 * j);
    }
  };
  auto store_no_ds = [&](uint32_t ds_tile) {
    const uint32_t none[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j + matrix_chunk), none);
  };
  // dQ^T of a tile = K^T dS^T, 16 of its D rows a warp, to dq_sum; brings in what else is in flight
  float* dq_out = p.dq_sum + ((uint64_t)head * tiles + first) * (M * D) + warp * 512 + lane * 4;
  auto add_dq = [&](int tile, uint32_t ds_tile) {
    float dq[32]; float* out = dq_out + (tile - first) * (M * D);
    const uint32_t k = desc_low(k_smem, KV_BYTES), ds_desc = desc_low(ds_tile, DS_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; i++) MmaSS<64, 1, 1>::mma(dq, k + i * 128, ds_desc + i * 128, i != 0);
    wgmma_commit(); wgmma_wait<0>(); touch(dq); touch(dv); touch(dk);
#pragma unroll
    for (int j = 0; j < 8; j++)                                  // passes.cu: all D rows of columns 0-31, then of 32-63
      red_add_float4(out + (j / 4) * 2048 + (j % 4) * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  };

  zero(dk); zero(dv);
  int buffer = 0, turn = GROUPS - 1;                             // dS of a block's tile i is in buffer i % 3
  uint32_t ds_parity = 1;                                        // of the buffer before
  mbar_wait(k_full, 0); mbar_wait(v_full, 0);
#pragma unroll 1
  for (int tile = first; tile < tiles; ++tile) {
    const int stage = (tile - first) % STAGES, before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1;
    const uint32_t parity = (uint32_t)(tile - first) / STAGES & 1;
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES;
    const uint32_t ds_tile = ds_smem + buffer * DS_BYTES;
    const bool my_turn = turn == w && tile > first;
    if (tile >= begin) {
      // SCORES: S and dP
      mbar_wait(q_full + 8 * stage, parity); mbar_wait(do_full + 8 * stage, parity);
      wgmma_fence(); issue_score(s, k_smem, q_tile); issue_score(dp, v_smem, do_tile);
      // P, then dV under dS
      wgmma_wait<1>(); touch(s);
      make_p(tile, lse_smem + stage * STAT_BYTES); touch(pt);
      wgmma_fence(); issue_accumulate(dv, pt, do_tile);
      // DS, then dK
      wgmma_wait<1>(); touch(dp);
      mbar_wait(ds_full + 8 * before, ds_parity);                // everybody made dS of the tile before
      make_ds(delta_smem + stage * STAT_BYTES, ds_tile); touch(ds);
      proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
      wgmma_fence(); issue_accumulate(dk, ds, q_tile);
      // DQ of the tile before
      if (my_turn) add_dq(tile - 1, ds_smem + before * DS_BYTES);
      wgmma_wait<0>(); touch(dv); touch(dk);
    } else {
      mbar_wait(ds_full + 8 * before, ds_parity);
      store_no_ds(ds_tile);
      proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
    }
    if (loads && tile + 2 < tiles) load_tile(tile + 2);          // into a slot that everybody is through with
    if (my_turn && tile < begin) add_dq(tile - 1, ds_smem + before * DS_BYTES);
    turn = turn == GROUPS - 1 ? 0 : turn + 1;
    if (buffer == 0) ds_parity ^= 1;
    buffer = buffer == DS_BUFFERS - 1 ? 0 : buffer + 1;
  }
  if (turn == w) {
    const int before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1;
    mbar_wait(ds_full + 8 * before, ds_parity);
    add_dq(tiles - 1, ds_smem + before * DS_BYTES);
  }

  // STORE
  const uint64_t out = ((uint64_t)head * seqlen + row) * D;
  store_rows(p.dv + out, D, dv, 1.f, row, seqlen, lane);
  store_rows(p.dk + out, D, dk, p.scale, row, seqlen, lane);
}
