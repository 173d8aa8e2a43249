// The short passes around the backward of headdim 128 and 256: what the main kernel needs of o and lse before it, dq
// out of its fp32 sums after it. Headdim 64 does both in its main kernel (passes.cuh).
//
// Shapes   o, do, dq [B, H, S, D] 16-bit floats, contiguous, lse [B, H, S] float32, natural logarithm. T = ceil(S / 64)
//          tiles of 64 query rows
//          stats [B * H, T, 2, 64] float32: lse * log2(e), then delta; rows past S hold +inf and 0, so that their P and
//          dS are 0
//          dq_sum [B * H, T, 64 * D] float32, a tile in the order of the main kernel's accumulators (below)
// Phases   preprocess: delta = rowsum(do * o), stats, turns <- 0      postprocess: dq = dq_sum * scale
// Order    the main kernel holds dq transposed: warp w of 8 has D rows 16 (w % 4) ... + 15 of half w / 4 and all 64
//          query columns. Its registers leave as float4: [w][i / 4][lane][i % 4], register i of a lane being D row
//          lane / 4 + 8 (i / 2 % 2), query column 8 (i / 4) + 2 (lane % 4) + i % 2
// Bound    HBM: 4 bytes an element of q in preprocess, 6 in postprocess
// Limits   16-byte aligned tensors
// Check    python -m pytest tests/submissions/test_cuda_hopper_backward_deterministic.py
// build: -DHEADDIM=128
// build: -DHEADDIM=256
#include "rows.cuh"

#ifndef HEADDIM
#define HEADDIM 128
#endif
constexpr int D = HEADDIM, THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, float* stats, uint32_t* turns, int S) {
  constexpr int LANES = D / 8, ROWS = THREADS / LANES;  // 16 bytes a lane
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * 64;
  const uint64_t first = ((uint64_t)head * S + row0) * D + threadIdx.x % LANES * 8;
  float* stat = stats + (uint64_t)blockIdx.x * 128;
#pragma unroll
  for (int r = 0; r < 64; r += ROWS) {
    const int in_tile = r + threadIdx.x / LANES, row = row0 + in_tile;
    float sum = 0.f;
    if (row < S) {
      const uint4 a = *reinterpret_cast<const uint4*>(o + first + in_tile * D),
                  b = *reinterpret_cast<const uint4*>(d_o + first + in_tile * D);
      const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 u = unpack_half2(x[i]), v = unpack_half2(y[i]);
        sum = fmaf(u.x, v.x, sum);
        sum = fmaf(u.y, v.y, sum);
      }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % LANES == 0) {
      float l = infinity();
      if (row < S) {
        l = lse[(uint64_t)head * S + row] * 1.4426950408889634f;
        if (l == -infinity()) l = infinity();
      }  // a row that saw no key
      stat[in_tile] = l;
      stat[64 + in_tile] = row < S ? sum : 0.f;
    }
  }
  if (turns && threadIdx.x == 0) turns[blockIdx.x] = 0;
}

#if HEADDIM == 128
extern "C" __global__ void __launch_bounds__(THREADS)
    postprocess(const float* dq_sum, uint16_t* dq, float scale, int S) {
  constexpr int REGS = D / 4, PITCH = D + 8;  // registers a lane held; halves from row to row in shared memory
  SHARED_MEMORY(smem);
  uint16_t* tile = reinterpret_cast<uint16_t*>(smem);  // [64][PITCH]
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * 64;
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int d = 16 * (w & 3) + lane / 4 + 64 * (w / 4), q = 2 * (lane & 3);
  const float4* source = reinterpret_cast<const float4*>(dq_sum + (uint64_t)blockIdx.x * 64 * D) + w * REGS * 8 + lane;
#pragma unroll
  for (int j = 0; j < REGS / 4; j++) {
    const float4 x = source[j * 32];
    const uint32_t low = pack_half2(x.x * scale, x.y * scale),
                   high = pack_half2(x.z * scale, x.w * scale);  // D rows d and d + 8
    uint16_t* at = tile + (q + 8 * j) * PITCH + d;
    at[0] = (uint16_t)low;
    at[PITCH] = (uint16_t)(low >> 16);
    at[8] = (uint16_t)high;
    at[PITCH + 8] = (uint16_t)(high >> 16);
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < 8 * D; i += THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    if (row0 + row < S)
      *reinterpret_cast<uint4*>(dq + ((uint64_t)head * S + row0 + row) * D +
          chunk * 8) = *reinterpret_cast<const uint4*>(tile + row * PITCH + chunk * 8);
  }
}
#endif
