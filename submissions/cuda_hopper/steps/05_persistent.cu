// Rung 5, persistent blocks: one block per SM walks query blocks, longest first, in sections whose K, V fit in L2.
// Changed  a static list of work items (item = blockIdx.x, + SMs, ...); Q's slot is handed back early, so that the next
//          Q is on its way during STORE.
//
//   section 0            section 1            item -> (section, query block, head in section)
//   ┌ long ... short ┐   ┌ long ... short ┐   within a section the longest query blocks of all its heads come first
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous fp16, D = 64, 128 or 256; q_smem [128, D], k_smem and v_smem two stages
//          [N, D]
// Phases   LOAD  SCORE  SOFTMAX  ACCUMULATE  STORE
// Bound    instructions: maximum, rescaling and the exps fill the gap between two turns; a static list cannot react
// Limits   sm_90a only; any S, any scale
// Run      python run.py --submission cuda_hopper/steps/05_persistent.cu
#include "rows.cuh"

// kv rows per tile; D = 256 leaves room for 64
template <int D> struct Tile { static constexpr int N = D == 256 ? 64 : 128; };
constexpr int WGS = 2, M = 64 * WGS, STAGES = 2;

template <int D, bool CAUSAL>
__global__ void __launch_bounds__((WGS + 1) * 128, 1)
    step(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
         const __grid_constant__ TensorMap v_map, uint16_t* o, int S, float scale, int heads, int section) {
  extern __shared__ __align__(1024) uint8_t smem[];
  constexpr int N = Tile<D>::N;
  constexpr uint32_t TILE = N * D * 2, Q_TILE = 64 * D * 2;
  const uint32_t q_smem = smem_u32(smem), k_smem = q_smem + WGS * Q_TILE, v_smem = k_smem + STAGES * TILE;
  const uint32_t k_full = v_smem + STAGES * TILE, k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES,
                 v_empty = v_full + 8 * STAGES;
  const uint32_t q_full = v_empty + 8 * STAGES, q_empty = q_full + 8 * WGS;
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0), blocks = (S + M - 1) / M;
  const int items = (heads + section - 1) / section * section * blocks;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbar_init(k_full + 8 * i, 1);
      mbar_init(v_full + 8 * i, 1);
      mbar_init(k_empty + 8 * i, 4 * WGS);
      mbar_init(v_empty + 8 * i, 4 * WGS);
    }
    for (int i = 0; i < WGS; i++) { mbar_init(q_full + 8 * i, 1); mbar_init(q_empty + 8 * i, 4); }
    proxy_fence();
  }
  __syncthreads();

  if (wg == 0) {
    // LOAD: one warp, lane 0 acts by predicates
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (__shfl_sync(~0u, threadIdx.x >> 5, 0) == 0) {
      const int leader = (threadIdx.x & 31) == 0;
      int slot = 0; uint32_t parity = 1; uint32_t q_parity = 1;
      auto fill = [&](const TensorMap* map, uint32_t dst, uint32_t full, int key, int head) {
        mbar_expect_if(full, TILE, leader);
#pragma unroll
        for (int c = 0; c < D / 64; c++) tma_load_if(dst + c * N * 128, map, c * 64, key, head, full, leader);
      };
#pragma unroll 1
      for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const int group = item / section, part = group / blocks;
        const int head = part * section + item % section, first_row = (blocks - 1 - (group - part * blocks)) * M,
                  end = CAUSAL ? min(first_row + M, S) : S;
        if (head >= heads) continue;
        for (int i = 0; i < WGS; i++) {
          mbar_wait(q_empty + 8 * i, q_parity);
          mbar_expect_if(q_full + 8 * i, Q_TILE, leader);
#pragma unroll
          for (int c = 0; c < D / 64; c++)
            tma_load_if(q_smem + i * Q_TILE + c * 8192, &q_map, c * 64, first_row + 64 * i, head, q_full + 8 * i,
                        leader);
        }
        q_parity ^= 1;
#pragma unroll 1
        for (int key = 0; key < end; key += N) {
          mbar_wait(k_empty + 8 * slot, parity); fill(&k_map, k_smem + slot * TILE, k_full + 8 * slot, key, head);
          mbar_wait(v_empty + 8 * slot, parity); fill(&v_map, v_smem + slot * TILE, v_full + 8 * slot, key, head);
          slot ^= 1; parity ^= slot == 0;
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int w = wg - 1, lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, lane0 = lane == 0;
    float s[N / 2], acc[D / 2]; uint32_t p[N / 4];
    int ks = 0, vs = 0; uint32_t kp = 0, vp = 0; uint32_t qp = 0;
    const uint32_t q_desc = desc_low(q_smem, 16) + w * (Q_TILE >> 4);
    auto score = [&] {       // S = Q K^T, issued only
      const uint32_t k_desc = desc_low(k_smem, 16) + ks * (TILE >> 4);
#pragma unroll
      for (int i = 0; i < D / 16; i++)
        QK<N>::mma(s, q_desc + (i & 3) * 2 + (i >> 2) * 512, k_desc + (i & 3) * 2 + (i >> 2) * (N * 8), i != 0);
      wgmma_commit();
    };
    auto accumulate = [&] {  // O += P V, issued only
      const uint32_t v_desc = desc_low(v_smem, N * 128) + vs * (TILE >> 4);
#pragma unroll
      for (int i = 0; i < N / 16; i++) PV<D>::mma(acc, p + 4 * i, v_desc + i * 128);
      wgmma_commit();
    };
    auto release_k = [&] { mbar_arrive_if(k_empty + 8 * ks, lane0); ks ^= 1; kp ^= ks == 0; };
    auto release_v = [&] { mbar_arrive_if(v_empty + 8 * vs, lane0); vs ^= 1; vp ^= vs == 0; };
    if (w == 0) named_arrive(1);   // warpgroup 0 issues first
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
      const int group = item / section, part = group / blocks;
      const int head = part * section + item % section, first_row = (blocks - 1 - (group - part * blocks)) * M,
                end = CAUSAL ? min(first_row + M, S) : S;
      if (head >= heads) continue;
      const int row = first_row + 64 * w + warp * 16 + (lane >> 2);
      const Limits limits = row_limits<CAUSAL>(row, S, lane);
      Rows rows = {{-1e30f, -1e30f}, {0.f, 0.f}};
      float shrink[2];
      mbar_wait(q_full + 8 * w, qp);
      // SCORE and SOFTMAX of tile 0: nothing to overlap with yet
      mbar_wait(k_full + 8 * ks, kp); wgmma_fence(); score(); wgmma_wait<0>(); touch(s); release_k();
      softmax_tile(s, rows, scale, limits, 0, shrink); pack_p(p, s); touch(p);
#pragma unroll
      for (int i = 0; i < D / 2; i++) acc[i] = 0.f;
#pragma unroll 1
      for (int key = N; key < end; key += N) {
        mbar_wait(k_full + 8 * ks, kp);
        named_sync(1 + w);                                       // this warpgroup's turn to issue
        wgmma_fence(); score();                                  // SCORE of this tile
        mbar_wait(v_full + 8 * vs, vp); wgmma_fence(); accumulate();   // ACCUMULATE of the tile before
        named_arrive(2 - w);
        wgmma_wait<1>(); touch(s); release_k();
        softmax_tile(s, rows, scale, limits, key, shrink);       // SOFTMAX of this tile, under both matrix products
        // true already: ends the basic block, so ptxas keeps the exps above
        mbar_wait(v_full + 8 * vs, vp);
        wgmma_wait<0>(); touch(acc); release_v();
        scale_o(acc, shrink); pack_p(p, s); touch(p); touch(acc);
      }
      mbar_arrive_if(q_empty + 8 * w, lane0); qp ^= 1;           // Q was read for the last time
      mbar_wait(v_full + 8 * vs, vp); wgmma_fence(); accumulate(); wgmma_wait<0>(); touch(acc); release_v();
      store_rows(o + (uint64_t)head * S * D, acc, rows, row, S, lane);   // STORE
    }
  }
}
