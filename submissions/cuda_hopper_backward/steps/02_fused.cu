// Attention backward on Hopper (sm_90a), rung 2: one kernel, five products a tile; dq is summed in memory by bulk reductions.
//
// Changed against kernels/two_kernels.cu
//   two warpgroups share 128 kv rows; their halves of dS meet in shared memory and become dQ there, so nothing is computed twice
//   loads run two tiles ahead, in three slots
//
// Shapes   as in kernels/backward.cu: k_smem, v_smem [128, D]   q_smem, do_smem [3][64, D]   ds_smem [2][128, 64]   dq_smem
//
//                  query tiles of 64, left to right →         one block = 128 kv rows of one head
//   warpgroup 0 ┌────┬────┬────┬────┐                          warpgroup w: kv rows 64 w ... + 63 of S^T, P^T, dP^T, dS^T, dk, dv
//   warpgroup 1 ├────┼────┼────┼────┤                          dQ^T = K^T dS^T: D = 128: warpgroup w has D rows 64 w ... + 63;
//               └─↓──┴─↓──┴─↓──┴─↓──┘                          D = 64: all of D, query columns 32 w ... + 31
//                 dq tiles, summed in memory (fp32), each warp its own piece
//
// Phases   TRIP: SCORES, P, DS, GRADIENTS, LOAD, DQ OUT   STORE; P and dS are made while the tensor cores have little or nothing to do
// Bound    10 B H S^2 D / 2 flops (causal) at 4096 per clock and SM: 0.69 / 1.39 ms at 1.83 GHz on 132 SMs for hdim64_seq4k and
//          hdim128_seq8k, and the time of P and dS on top
// Measured one H200, calls with their passes: hdim64_seq4k 2.014 ms, 341.2 TFLOP/s; hdim128_seq8k 2.885 ms, 476.4 TFLOP/s
// Limits   sm_90a, fp16, D = 64 or 128, equal lengths of q and k; any S, any scale; sums of dq in no fixed order
// Check    python benchmarks/backward_kernel.py --rungs fused
#include "rows.cuh"

// ---------------------------------------------------------------------- shape of this build (by -D)
#ifndef HEADDIM
#define HEADDIM 128
#endif

#ifndef DS_64B
#define DS_64B 1         // headdim 64: ds_smem as two panels of 32 query columns with 64-byte swizzle; 0: one of 64 with 128-byte swizzle
#endif

constexpr int D = HEADDIM, PANELS = D / 64;
constexpr int M = 64, N = 128;                      // query rows of a tile, kv rows of a block
constexpr int STAGES = 3;                           // tiles of q and do: in use, arriving, arriving
constexpr int NQ = D / 4;                           // registers of dQ^T: 64 x 64 (D = 128) or 64 x 32 (D = 64) a warpgroup
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, DQ_WARP_BYTES = NQ * 32 * 4, STAT_BYTES = M * 4;
constexpr uint32_t KV_PANEL = N * 128, TILE_PANEL = M * 128;
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

// 16-byte chunk of ds_smem: one panel of 64 columns with 128-byte swizzle, or two of 32 columns with 64-byte swizzle
constexpr bool NARROW = D == 64 && DS_64B;
constexpr int DS_ROW = NARROW ? 64 : 128;                                    // bytes
constexpr uint32_t DS_HALF = NARROW ? DS_BYTES / 2 : 64, DS_STEP = DS_ROW;   // bytes to the second 32 columns; 16 rows / 16 bytes
__device__ __forceinline__ uint32_t ds_chunk(uint32_t base, int row, int chunk) {
  if (!NARROW) return swizzled(base, row, chunk);
  return base + (chunk >> 2) * (DS_BYTES / 2) + row * 64 + (((chunk & 3) ^ (row >> 1 & 3)) << 4);
}

// 16 kv rows of dQ^T: D = 128 the rows of panel w of K^T and all 64 query columns, D = 64 all rows and 32 query columns
__device__ __forceinline__ void dq_product(float (&dq)[32], uint32_t kt, uint32_t ds_tile, int i, int w) {
  MmaSS<64, 1, 1>::mma(dq, kt + w * (KV_PANEL >> 4), desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
}
__device__ __forceinline__ void dq_product(float (&dq)[16], uint32_t kt, uint32_t ds_tile, int i, int w) {
  MmaSS<32, 1, 1, DS_ROW>::mma(dq, kt, desc_low(ds_tile + w * DS_HALF, DS_BYTES) + i * DS_STEP, i != 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
         const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES, q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES, dq_smem = ds_smem + 2 * DS_BYTES;
  const uint32_t lse_smem = dq_smem + WARPS * DQ_WARP_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t q_full = delta_smem + STAGES * STAT_BYTES, do_full = q_full + 8 * STAGES, k_full = do_full + 8 * STAGES, v_full = k_full + 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  // blocks of a section of heads: kv tile 0 of each head, then kv tile 1, ...: the longest first if causal
  const int tiles = (p.seqlen + M - 1) / M, kv_blocks = (p.seqlen + N - 1) / N;
  const int section = blockIdx.x / (p.section * kv_blocks), in_section = blockIdx.x - section * p.section * kv_blocks;
  const int wide = min(p.section, p.heads - section * p.section), kv_block = in_section / wide;
  const int head = section * p.section + in_section - kv_block * wide, kv0 = kv_block * N;
  const int first = p.causal ? kv0 / M : 0;

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  const int kv_rows = kv0 + 64 * w, row = kv_rows + warp * 16 + (lane >> 2);   // this warpgroup's first kv row; this thread's: row, row + 8
  float s[32], dp[32], dk[D / 2], dv[D / 2], dq[NQ]; uint32_t pt[16], ds[16];
  // where a lane points for 8 x 8 matrices: lanes 8 m ... 8 m + 7 are the rows of matrix m, at rows + 8 (m % 2), chunk + m / 2
  const int matrix_row = 64 * w + warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // LOAD: warpgroup 0 asks for q and k, warpgroup 1 for do and v, by lane 0 of its first warp
  const float* stat = p.stats + ((uint64_t)head * tiles + first) * 128 + M * w;
  auto load_tile = [&](int tile, int stage) {
    const TensorMap* map = w ? &do_map : &q_map;
    const uint32_t full = (w ? do_full : q_full) + 8 * stage, dst = (w ? do_smem : q_smem) + stage * TILE_BYTES;
    mbar_expect_if(full, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
    for (int c = 0; c < PANELS; c++) tma_load_if(dst + c * TILE_PANEL, map, c * 64, tile * M, head, full, lane0);
    bulk_load_if((w ? delta_smem : lse_smem) + stage * STAT_BYTES, stat + (tile - first) * (2 * M), STAT_BYTES, full, lane0);
  };
  if (warp == 0) {
    const uint32_t full = w ? v_full : k_full;
    mbar_expect_if(full, KV_BYTES, lane0);
#pragma unroll
    for (int c = 0; c < PANELS; c++) tma_load_if((w ? v_smem : k_smem) + c * KV_PANEL, w ? &v_map : &k_map, c * 64, kv0, head, full, lane0);
    load_tile(first, 0);
    if (first + 1 < tiles) load_tile(first + 1, 1);
  }

  // S^T or dP^T of a query tile: issued only
  auto issue_score = [&](float (&x)[32], uint32_t kv_smem, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < D / 16; i++)
      MmaSS<64, 0, 0>::mma(x, desc_low(kv_smem + w * 8192, 16) + (i & 3) * 2 + (i >> 2) * (KV_PANEL >> 4), desc_low(tile_smem, 16) + (i & 3) * 2 + (i >> 2) * (TILE_PANEL >> 4), i != 0);
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
    for (int i = 0; i < N / 16; i++) dq_product(dq, desc_low(k_smem, KV_PANEL) + i * 128, ds_tile, i, w);
    wgmma_commit();
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, to fp16
  auto make_p = [&](int tile, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 l = lds_float2(lse + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, (i & 1) ? -l.y : -l.x));
    }
    if ((p.causal && tile * M < kv_rows + 63) || kv_rows + 64 > p.seqlen) {
      const int from0 = row >= p.seqlen ? 1 << 30 : p.causal ? row - tile * M - pair : -1;           // first query column that sees the row,
      const int from1 = row + 8 >= p.seqlen ? 1 << 30 : p.causal ? row + 8 - tile * M - pair : -1;   // less this lane's column
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
    pack_rows(pt, s);
  };
  // dS^T = P^T (dP^T - delta), to fp16 in registers and in ds_smem
  auto make_ds = [&](uint32_t delta, uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) dp[4 * j + i] = s[4 * j + i] * (dp[4 * j + i] - ((i & 1) ? d.y : d.x));
      ds[2 * j] = pack_half2(dp[4 * j], dp[4 * j + 1]); ds[2 * j + 1] = pack_half2(dp[4 * j + 2], dp[4 * j + 3]);
      if (j & 1) store_matrices(ds_chunk(ds_tile, matrix_row, j - 1 + matrix_chunk), ds + 2 * j - 2);
    }
  };
  // this warp's piece of dQ^T into dq_smem, from there added to dq_sum while the next trip runs
  float* dq_out = p.dq_sum + ((uint64_t)head * tiles + first) * (M * D) + warps * (NQ * 32);
  const uint32_t dq_warp = dq_smem + warps * DQ_WARP_BYTES;
  auto dq_to_memory = [&] {
    bulk_wait_read(); __syncwarp();                              // the bulk reduction of the trip before has read dq_smem
#pragma unroll
    for (int j = 0; j < NQ / 4; j++) sts_float4(dq_warp + (j * 32 + lane) * 16, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    proxy_fence(); __syncwarp();
    bulk_add_if(dq_out, dq_warp, DQ_WARP_BYTES, lane0); bulk_commit();
    dq_out += M * D;
  };

  zero(dk); zero(dv);
  mbar_wait(k_full, 0); mbar_wait(v_full, 0);
  int stage = 0; uint32_t parity = 0, ds_tile = ds_smem;
#pragma unroll 1
  for (int tile = first; tile < tiles; ++tile) {
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES;
    // SCORES
    mbar_wait(q_full + 8 * stage, parity); mbar_wait(do_full + 8 * stage, parity);
    wgmma_fence(); issue_score(s, k_smem, q_tile); issue_score(dp, v_smem, do_tile);
    // P
    wgmma_wait<1>(); touch(s); make_p(tile, lse_smem + stage * STAT_BYTES);
    // DS
    wgmma_wait<0>(); touch(dp); make_ds(delta_smem + stage * STAT_BYTES, ds_tile); touch(pt); touch(ds);
    proxy_fence(); bar_sync(1, THREADS);                         // both halves of dS are in ds_smem, and the trip before is over
    // GRADIENTS
    wgmma_fence(); issue_dq(ds_tile); issue_accumulate(dv, pt, do_tile); issue_accumulate(dk, ds, q_tile);
    // LOAD into the slot of the tile before
    if (warp == 0 && tile + 2 < tiles) load_tile(tile + 2, stage == 0 ? 2 : stage - 1);
    // DQ OUT
    wgmma_wait<2>(); touch(dq);
    dq_to_memory();
    wgmma_wait<0>(); touch(dk); touch(dv);
    if (++stage == STAGES) stage = 0, parity ^= 1;
    ds_tile ^= ds_smem ^ (ds_smem + DS_BYTES);
  }

  // STORE
  const uint64_t out = ((uint64_t)head * p.seqlen + row) * D;
  store_rows(p.dv + out, D, dv, 1.f, row, p.seqlen, lane); store_rows(p.dk + out, D, dk, p.scale, row, p.seqlen, lane);
  bulk_wait();
}
