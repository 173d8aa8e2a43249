// The two short passes around the backward: what the main kernel needs of o and lse before it, and dq out of its fp32 sums after it.
//
// Shapes   o, do, dq [B, H, S, D] contiguous fp16, lse [B, H, S] float32, natural logarithm. T = ceil(S / 64) tiles of 64 query rows
//          stats [B * H, T, 2, 64] float32: lse * log2(e), then delta; rows past S hold +inf and 0, so that their P and dS are 0
//          STATS_BY_LANE: the query columns of a tile in the order in which a lane of a quad reads them, 16 bytes at a time
//          dq_sum [B * H, T, 64 * D] float32, a tile in the order of the main kernel's accumulators (below)
// Phases   preprocess: delta = rowsum(do * o), stats, dq_sum <- 0      postprocess: dq = dq_sum * scale
// Order    the main kernel holds dq transposed: warp w of 8 has D rows 16 (w % 4) ... + 15 (of half w / 4 if D = 128) and all 64 query
//          columns (D = 64: half w / 4 of them). Its registers leave as float4: [w][i / 4][lane][i % 4], register i of a lane being
//          D row lane / 4 + 8 (i / 2 % 2), query column 8 (i / 4) + 2 (lane % 4) + i % 2
// Bound    HBM: 12 bytes an element of q in preprocess (8 without dq_sum), 6 in postprocess; 0.1 ms together at the official shapes (prediction)
// Measured one H200, hdim64_seq4k and hdim128_seq8k: preprocess 0.070 ms (0.037 without dq_sum), postprocess 0.052 ms
// Limits   D = 64, 128 or 256; 16-byte aligned tensors
// Check    python benchmarks/backward_kernel.py
// build: -DHEADDIM=64
// build: -DHEADDIM=64 -DSTATS_BY_LANE=1
// build: -DHEADDIM=128
// build: -DHEADDIM=256
#include "sm90.cuh"

#ifndef HEADDIM
#define HEADDIM 128
#endif
#ifndef STATS_BY_LANE
#define STATS_BY_LANE 0
#endif
constexpr int D = HEADDIM, THREADS = 256;
// where column c of a tile is in stats: by lane, columns 8 j + 2 l + {0, 1} and 8 j + 8 + 2 l + {0, 1} of lane l follow each other, j even
__device__ __forceinline__ int stat_place(int c) { return STATS_BY_LANE ? (c & ~15) + (c >> 1 & 3) * 4 + (c >> 3 & 1) * 2 + (c & 1) : c; }

extern "C" __global__ void __launch_bounds__(THREADS)
preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, float* stats, float* dq_sum, int S) {
  constexpr int LANES = D / 8, ROWS = THREADS / LANES;        // 16 bytes a lane
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * 64;
  float* stat = stats + (uint64_t)blockIdx.x * 128;
#pragma unroll
  for (int r = 0; r < 64; r += ROWS) {
    const int in_tile = r + threadIdx.x / LANES, row = row0 + in_tile;
    float sum = 0.f;
    if (row < S) {
      const uint64_t at = ((uint64_t)head * S + row) * D + threadIdx.x % LANES * 8;
      const uint4 a = *reinterpret_cast<const uint4*>(o + at), b = *reinterpret_cast<const uint4*>(d_o + at);
      const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 u = unpack_half2(x[i]), v = unpack_half2(y[i]);
        sum = fmaf(u.x, v.x, sum); sum = fmaf(u.y, v.y, sum);
      }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % LANES == 0) {
      float l = infinity();
      if (row < S) { l = lse[(uint64_t)head * S + row] * 1.4426950408889634f; if (l == -infinity()) l = infinity(); }   // a row that saw no key
      stat[stat_place(in_tile)] = l; stat[64 + stat_place(in_tile)] = row < S ? sum : 0.f;
    }
  }
  if (dq_sum) {
    float4* zero = reinterpret_cast<float4*>(dq_sum + (uint64_t)blockIdx.x * 64 * D);
#pragma unroll
    for (int i = threadIdx.x; i < 16 * D; i += THREADS) zero[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
postprocess(const float* dq_sum, uint16_t* dq, float scale, int S) {
  constexpr int REGS = D / 4, PITCH = D + 8;                  // registers a lane held; halves from row to row in shared memory
  SHARED_MEMORY(smem);
  uint16_t* tile = reinterpret_cast<uint16_t*>(smem);         // [64][PITCH]
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * 64;
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int d = 16 * (w & 3) + lane / 4 + (D == 128 ? 64 * (w / 4) : 0), q = 2 * (lane & 3) + (D == 64 ? 32 * (w / 4) : 0);
  const float4* source = reinterpret_cast<const float4*>(dq_sum + (uint64_t)blockIdx.x * 64 * D) + w * REGS * 8 + lane;
#pragma unroll
  for (int j = 0; j < REGS / 4; j++) {
    const float4 x = source[j * 32];
    const uint32_t low = pack_half2(x.x * scale, x.y * scale), high = pack_half2(x.z * scale, x.w * scale);   // D rows d and d + 8
    uint16_t* at = tile + (q + 8 * j) * PITCH + d;
    at[0] = (uint16_t)low; at[PITCH] = (uint16_t)(low >> 16); at[8] = (uint16_t)high; at[PITCH + 8] = (uint16_t)(high >> 16);
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < 8 * D; i += THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    if (row0 + row < S) *reinterpret_cast<uint4*>(dq + ((uint64_t)head * S + row0 + row) * D + chunk * 8) = *reinterpret_cast<const uint4*>(tile + row * PITCH + chunk * 8);
  }
}
