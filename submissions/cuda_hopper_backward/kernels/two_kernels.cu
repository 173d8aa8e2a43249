// Attention backward on Hopper (sm_90a), the simple rung: one kernel for dk and dv, one for dq, no atomics, bit for bit repeatable.
//
// Shapes   q, k, v, do, dq, dk, dv [B, H, S, D] contiguous fp16, TMA boxes of 64 rows x 64 columns, 128-byte swizzle
//          stats [B * H, T, 2, 64] float32 of passes.cu: log2(e) * lse and delta of each tile of 64 query rows
//
//                  query tiles, i →                          P = 2^(S * scale - lse)      dS = P (dP - delta)
//               ┌────┬────┬────┬────┐
//   kv tile j   │diag│ P  │ P  │ P  │ → dk j, dv j  (dkdv)   S^T = K Q^T, dP^T = V dO^T: their rows are kv rows, so that
//               ├────┼────┼────┼────┤                        P^T and dS^T are already the A operands, in registers, of
//               │ // │diag│ P  │ P  │                        dV += P^T dO and dK += dS^T Q
//               └────┴─↓──┴────┴────┘
//                     dq i           (dq)                    S = Q K^T, dP = dO V^T, dQ += dS K
//
// Phases   LOAD (one tile ahead)  SCORE  SOFTMAX  ACCUMULATE, one after another; STORE
// D = 256  two warpgroups share a kv tile: each computes all of S^T and dP^T and accumulates its half of the columns of dk and dv
// Bound    7 products where 5 would do (9 at D = 256), and nothing but the loads overlaps: latency
// Measured one H200: hdim64_seq4k 2.122 ms a call, 323.9 TFLOP/s; hdim128_seq8k 3.805 ms, 361.2; hdim256_seq16k 10.337 ms, 265.9
// Limits   sm_90a, fp16, D = 64, 128 or 256, equal lengths of q and k; any S, any scale
// Check    python benchmarks/backward_kernel.py --rungs two_kernels
// build: -DHEADDIM=64
// build: -DHEADDIM=128
// build: -DHEADDIM=256
#include "rows.cuh"

#ifndef HEADDIM
#define HEADDIM 128
#endif
constexpr int D = HEADDIM, PANELS = D / 64;
constexpr int WGS = D == 256 ? 2 : 1;          // warpgroups of dkdv
constexpr int DW = D / WGS;                    // columns of dk and dv that one accumulates
constexpr uint32_t TILE = 64 * D * 2, PANEL = 8192;

struct Smem {                                  // pairs of tiles: k v or q do of this block, two slots for what passes by; barriers
  uint32_t fixed, moving, bars;                // barrier 0: fixed, 1 and 2: the slots
  __device__ __forceinline__ Smem(uint32_t base) : fixed(base), moving(base + 2 * TILE), bars(base + 6 * TILE) {
    if (threadIdx.x == 0) { for (int i = 0; i < 3; i++) mbar_init(bars + 8 * i, 1); mbar_init_done(); proxy_fence(); }
    __syncthreads();
  }
};
// rows [row, row + 64) of two tensors, if `on`
__device__ __forceinline__ void load_pair(uint32_t dst, const TensorMap* a, const TensorMap* b, int row, int head, uint32_t bar, bool on) {
  const int leader = on && threadIdx.x == 0;
  mbar_expect_if(bar, 2 * TILE, leader);
#pragma unroll
  for (int c = 0; c < PANELS; c++) {
    tma_load_if(dst + c * PANEL, a, c * 64, row, head, bar, leader);
    tma_load_if(dst + TILE + c * PANEL, b, c * 64, row, head, bar, leader);
  }
}
// s = A B^T over D columns, both [64, D] in shared memory
__device__ __forceinline__ void issue_score(float (&s)[32], uint32_t a, uint32_t b) {
#pragma unroll
  for (int i = 0; i < D / 16; i++) MmaSS<64, 0, 0>::mma(s, desc_low(a, 16) + (i & 3) * 2 + (i >> 2) * 512, desc_low(b, 16) + (i & 3) * 2 + (i >> 2) * 512, i != 0);
}
// acc += P B, P [64, 64] in registers, B [64, N] in shared memory
template <int N> __device__ __forceinline__ void issue_accumulate(float (&acc)[N / 2], const uint32_t (&p)[16], uint32_t b) {
#pragma unroll
  for (int i = 0; i < 4; i++) MmaRS<N, 1>::mma(acc, p + 4 * i, desc_low(b, PANEL) + i * 128, 1);
}

extern "C" __global__ void __launch_bounds__(128 * WGS, 1)
dkdv(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
     const __grid_constant__ TensorMap do_map, const float* stats, uint16_t* dk, uint16_t* dv, int S, int causal, float scale, float scale_log2) {
  SHARED_MEMORY(smem);
  const Smem at(smem_u32(smem));
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, kv_tile = blockIdx.x - head * tiles;   // longest first if causal
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  const int row = kv_tile * 64 + warp * 16 + (lane >> 2);          // this thread's kv rows: row and row + 8
  float s[32], dp[32], dk_acc[DW / 2], dv_acc[DW / 2]; uint32_t p[16], ds[16];
  zero(dk_acc); zero(dv_acc);
  const int first = causal ? kv_tile : 0;
  load_pair(at.fixed, &k_map, &v_map, kv_tile * 64, head, at.bars, true);
  load_pair(at.moving, &q_map, &do_map, first * 64, head, at.bars + 8, true);
  mbar_wait(at.bars, 0);
  uint32_t parity = 0; int slot = 0;
#pragma unroll 1
  for (int tile = first; tile < tiles; ++tile, slot ^= 1, parity ^= slot == 0) {
    const uint32_t moving = at.moving + slot * 2 * TILE;
    // LOAD the next tile
    __syncthreads();                                               // everybody has read the tile before, whose slot it takes
    load_pair(at.moving + (slot ^ 1) * 2 * TILE, &q_map, &do_map, (tile + 1) * 64, head, at.bars + 8 + 8 * (slot ^ 1), tile + 1 < tiles);
    mbar_wait(at.bars + 8 + 8 * slot, parity);
    // SCORE
    wgmma_fence(); issue_score(s, at.fixed, moving); issue_score(dp, at.fixed + TILE, moving + TILE); wgmma_commit(); wgmma_wait<0>(); touch(s); touch(dp);
    // SOFTMAX
    const float* stat = stats + ((uint64_t)head * tiles + tile) * 128 + 2 * (lane & 3);
    const int from0 = row >= S ? 1 << 30 : causal ? row - tile * 64 - 2 * (lane & 3) : -1;   // first query column that sees the row,
    const int from1 = row + 8 >= S ? 1 << 30 : causal ? row + 8 - tile * 64 - 2 * (lane & 3) : -1;   // less this lane's column
#pragma unroll
    for (int i = 0; i < 32; i++) {
      const float lse = stat[i / 4 * 8 + (i & 1)], delta = stat[64 + i / 4 * 8 + (i & 1)];
      s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : exp2_approx(fmaf(s[i], scale_log2, -lse));
      dp[i] = s[i] * (dp[i] - delta);
    }
    pack_rows(p, s); pack_rows(ds, dp); touch(p); touch(ds);
    // ACCUMULATE
    wgmma_fence();
    issue_accumulate<DW>(dv_acc, p, moving + TILE + wg * (DW / 64) * PANEL); issue_accumulate<DW>(dk_acc, ds, moving + wg * (DW / 64) * PANEL);
    wgmma_commit(); wgmma_wait<0>(); touch(dv_acc); touch(dk_acc);
  }
  // STORE
  const uint64_t out = ((uint64_t)head * S + row) * D + wg * DW;
  store_rows(dv + out, D, dv_acc, 1.f, row, S, lane); store_rows(dk + out, D, dk_acc, scale, row, S, lane);
}

extern "C" __global__ void __launch_bounds__(128, 1)
dq(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
   const __grid_constant__ TensorMap do_map, const float* stats, uint16_t* dq, int S, int causal, float scale, float scale_log2) {
  SHARED_MEMORY(smem);
  const Smem at(smem_u32(smem));
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, q_tile = tiles - 1 - (blockIdx.x - head * tiles);   // longest first
  const int lane = threadIdx.x & 31, in_tile = (threadIdx.x >> 5) * 16 + (lane >> 2), row = q_tile * 64 + in_tile;
  float s[32], dp[32], acc[D / 2]; uint32_t ds[16];
  zero(acc);
  const int end = causal ? q_tile + 1 : tiles;
  load_pair(at.fixed, &q_map, &do_map, q_tile * 64, head, at.bars, true);
  load_pair(at.moving, &k_map, &v_map, 0, head, at.bars + 8, true);
  const float* stat = stats + ((uint64_t)head * tiles + q_tile) * 128 + in_tile;
  const float lse[2] = {stat[0], stat[8]}, delta[2] = {stat[64], stat[72]};
  mbar_wait(at.bars, 0);
  uint32_t parity = 0; int slot = 0;
#pragma unroll 1
  for (int tile = 0; tile < end; ++tile, slot ^= 1, parity ^= slot == 0) {
    const uint32_t moving = at.moving + slot * 2 * TILE;
    // LOAD the next tile
    __syncthreads();
    load_pair(at.moving + (slot ^ 1) * 2 * TILE, &k_map, &v_map, (tile + 1) * 64, head, at.bars + 8 + 8 * (slot ^ 1), tile + 1 < end);
    mbar_wait(at.bars + 8 + 8 * slot, parity);
    // SCORE
    wgmma_fence(); issue_score(s, at.fixed, moving); issue_score(dp, at.fixed + TILE, moving + TILE); wgmma_commit(); wgmma_wait<0>(); touch(s); touch(dp);
    // SOFTMAX
    const int last0 = (causal ? min(row, S - 1) : S - 1) - tile * 64 - 2 * (lane & 3), last1 = (causal ? min(row + 8, S - 1) : S - 1) - tile * 64 - 2 * (lane & 3);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      s[i] = i / 4 * 8 + (i & 1) > ((i & 2) ? last1 : last0) ? 0.f : exp2_approx(fmaf(s[i], scale_log2, -lse[i >> 1 & 1]));
      dp[i] = s[i] * (dp[i] - delta[i >> 1 & 1]);
    }
    pack_rows(ds, dp); touch(ds);
    // ACCUMULATE
    wgmma_fence(); issue_accumulate<D>(acc, ds, moving); wgmma_commit(); wgmma_wait<0>(); touch(acc);
  }
  store_rows(dq + ((uint64_t)head * S + row) * D, D, acc, scale, row, S, lane);   // STORE
}
