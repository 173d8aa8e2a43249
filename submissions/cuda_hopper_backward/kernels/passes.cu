// The short passes around the backward of headdim 128 and 256: what the main kernel needs of o and lse before it, dq out of its fp32 sums after
// it. Headdim 64 does these in its main kernel (passes.cuh). And for all: the sum of dk and dv over heads of q that share k and v.
//
// Shapes   o, do, dq [B, H, S, D] 16-bit floats, o and do of any strides (dq, dk and dv with GENERAL), lse [B, H, S] float32, natural logarithm. T = ceil(S / 64) tiles of 64 query rows
//          stats [B * H, T, 2, 64] float32: lse * log2(e), then delta, at headdim 256 minus delta;
//          rows past S hold +inf and 0, so that their P and dS are 0
//          dq_sum [B * H, T, 64 * D] float32, a tile in the order of the main kernel's accumulators (below)
// Phases   preprocess: delta = rowsum(do * o), stats, dq_sum <- 0 from a tile on, the main kernel's counters <- 0
//          postprocess: dq = dq_sum * scale      sum_group
// Order    the main kernel holds dq transposed: warp w of 8 has D rows 16 (w % 4) ... + 15 of half w / 4 and all 64 query columns. Its registers leave as float4: [w][i / 4][lane][i % 4], register i of a lane being
//          D row lane / 4 + 8 (i / 2 % 2), query column 8 (i / 4) + 2 (lane % 4) + i % 2
// Bound    HBM: 12 bytes an element of q in preprocess (8 without dq_sum), 6 in postprocess; 0.1 ms together at the official shapes (prediction)
// Measured one H200, hdim128_seq8k: preprocess 0.070 ms (0.037 without dq_sum), postprocess 0.052 ms
// Limits   16-byte aligned tensors
// Check    python benchmarks/backward_kernel.py
// build: -DHEADDIM=64
// build: -DHEADDIM=128
// build: -DHEADDIM=128 -DGENERAL=1 -DBF16=1
// build: -DHEADDIM=256
#include "rows.cuh"

#ifndef HEADDIM
#define HEADDIM 128
#endif
constexpr int D = HEADDIM, THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, float* stats, float* dq_sum, uint32_t* counters,
           int S, int nheads, int n_counters, int first_cleared, Strides o_at, Strides do_at) {
  if (blockIdx.x == 0) for (int i = threadIdx.x; i < n_counters; i += THREADS) counters[i] = 0;
  constexpr int LANES = D / 8, ROWS = THREADS / LANES;        // 16 bytes a lane
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * 64;
  const int batch = head / nheads, in_batch = head - batch * nheads;
  const uint16_t* o_head = o + batch * o_at.batch + in_batch * o_at.head + threadIdx.x % LANES * 8;
  const uint16_t* do_head = d_o + batch * do_at.batch + in_batch * do_at.head + threadIdx.x % LANES * 8;
  float* stat = stats + (uint64_t)blockIdx.x * 128;
#pragma unroll
  for (int r = 0; r < 64; r += ROWS) {
    const int in_tile = r + threadIdx.x / LANES, row = row0 + in_tile;
    float sum = 0.f;
    if (row < S) {
      const uint4 a = *reinterpret_cast<const uint4*>(o_head + row * o_at.row), b = *reinterpret_cast<const uint4*>(do_head + row * do_at.row);
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
      stat[in_tile] = l; stat[64 + in_tile] = row >= S ? 0.f : D == 256 ? -sum : sum;
    }
  }
  if (dq_sum && (int)blockIdx.x >= first_cleared) {
    float4* zero = reinterpret_cast<float4*>(dq_sum + (uint64_t)blockIdx.x * 64 * D);
#pragma unroll
    for (int i = threadIdx.x; i < 16 * D; i += THREADS) zero[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
}

#if HEADDIM == 128
extern "C" __global__ void __launch_bounds__(THREADS)
postprocess(const float* dq_sum, uint16_t* dq, float scale, int S, int nheads, Strides dq_at) {
  constexpr int REGS = D / 4, PITCH = D + 8;                  // registers a lane held; halves from row to row in shared memory
  SHARED_MEMORY(smem);
  uint16_t* tile = reinterpret_cast<uint16_t*>(smem);         // [64][PITCH]
  const int tiles = (S + 63) / 64, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * 64;
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int d = 16 * (w & 3) + lane / 4 + 64 * (w / 4), q = 2 * (lane & 3);
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
    const uint64_t out = GENERAL ? place_of(dq_at, head, nheads, row0 + row) : ((uint64_t)head * S + row0 + row) * D;
    if (row0 + row < S) *reinterpret_cast<uint4*>(dq + out + chunk * 8) = *reinterpret_cast<const uint4*>(tile + row * PITCH + chunk * 8);
  }
}
#endif

// Where a head of k and v serves `group` heads of q: its dk and dv are the sums of theirs, in float32 and in their order.
// parts [2, kv_heads, group, 8 * chunks], dk, dv [kv_heads, 8 * chunks], kv_nheads in one batch, of any strides
extern "C" __global__ void __launch_bounds__(THREADS)
sum_group(const uint16_t* parts, uint16_t* dk, uint16_t* dv, int kv_heads, int group, int chunks, int kv_nheads, Strides dk_at, Strides dv_at) {
  const uint64_t each = (uint64_t)kv_heads * chunks, at = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
  if (at >= 2 * each) return;
  const uint64_t head = at / chunks, chunk = at - head * chunks;
  const uint4* part = reinterpret_cast<const uint4*>(parts) + head * group * chunks + chunk;
  float sum[8];
#pragma unroll
  for (int i = 0; i < 8; i++) sum[i] = 0.f;
  for (int g = 0; g < group; g++, part += chunks) {
    const uint4 x = *part; const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) { const float2 y = unpack_half2(words[i]); sum[2 * i] += y.x; sum[2 * i + 1] += y.y; }
  }
  const bool is_dk = at < each;
  const uint64_t out = place_of(is_dk ? dk_at : dv_at, head - (is_dk ? 0 : kv_heads), kv_nheads, chunk / (D / 8)) + chunk % (D / 8) * 8;
  *reinterpret_cast<uint4*>((is_dk ? dk : dv) + out) = make_uint4(pack_half2(sum[0], sum[1]), pack_half2(sum[2], sum[3]), pack_half2(sum[4], sum[5]), pack_half2(sum[6], sum[7]));
}
