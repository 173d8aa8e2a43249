// Attention backward with nvcuda::wmma only: the second half of the lab. One function is both kernels:
// `keys` owns 64 keys and makes dK and dV, `queries` owns 64 queries and makes dQ. No atomics.
//
// Changed since cuda_wmma_lab (the forward): no online softmax, because lse is given; everything between
// two products happens in accumulator fragments, none of it in shared memory by index.
//
// Shapes   q, k, v, o, do, dq, dk, dv  [B, H, S, D] contiguous fp16, D = 64 or 128, sums in fp32
//          lse [B, H, S] fp32, natural; statistics [B * H, padded] fp32, padded to 64 rows
//
//              streamed rows b1, b2 -->                one block = 4 warps = 64 owned rows
//             16   16   16   16   64 more              keys      a1 = k, a2 = v, b1 = q, b2 = do
//           +----+----+----+----+----                  queries   a1 = q, a2 = do, b1 = k, b2 = v
//   warp 0  | s = a1 b1^T       |                      a   [64, D] x 2, loaded once
//   warp 1  | dp = a2 b2^T      |   <- owned rows      b   [64, D] x 2 tensors x 2 stages
//   warp 2  | p, ds in place    |                      s, dp  one fragment each of a warp
//   warp 3  |                   |                      acc1 += ds b1 (dk or dq), acc2 += p b2 (dv)
//           +----+----+----+----+----                  acc [16, D] per warp
//
// Phases   STATISTICS (lse in log2, delta = rowsum(do * o))
//          LOAD  SCORES  MASK  P  DS  ROUND (fragment -> fp16 operand)  ACCUMULATE  STORE
//
// The layout of an accumulator fragment is opaque, so lse, delta and the mask come as fragments too:
// loaded with leading dimension 0 a vector is repeated over rows (row-major) or columns (column-major),
// in exactly the layout that s has. An operand fragment has another layout, so ROUND goes through 16 x 16
// floats of shared memory, the only trip that wmma forces.
//
// Bound    10 S^2 D B H FLOP are counted and 14 done (both kernels form s and dp), half when causal. Every
//          fragment of b is loaded for one mma: shared memory, not the tensor cores.
// Measured not yet on a GPU
// Limits   fp16; D = 64, 128; contiguous tensors
// Run      python run.py --submission cuda_wmma_lab_backward
//
// build: -DHEADDIM=64
// build: -DHEADDIM=128
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

constexpr int D = HEADDIM;
constexpr int ROWS = 64, WARPS = 4, THREADS = 32 * WARPS;
constexpr int LD = D + 8;        // halves: padded rows, 4 banks apart
constexpr int TILE = ROWS * LD;  // halves of one [64, D] tile
constexpr int DF = D / 16;       // fragments along the head dimension
constexpr int F_LD = 20, P_LD = 24;  // floats, halves of a row in a warp's own 16 x 16 tiles
constexpr bool HOLD_A = D == 64;     // owned rows as fragments: 64 registers, too many at D = 128

struct Scratch {  // of one warp; every array starts at a multiple of 32 bytes
  float tile[16 * F_LD];
  __half operand[16 * P_LD];
};
struct Shared {
  __half a[2 * TILE];
  __half b[2][2 * TILE];       // [stage][b1, b2]
  float statistics[2][2 * ROWS];  // [stage][lse, delta]: of the streamed rows, or stage 0 of the owned ones
  float index[16];
  Scratch scratch[WARPS];
};

using FragA = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
using FragBt = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major>;
using FragB = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major>;
using FragC = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

__device__ __forceinline__ void copy_16_bytes(void* smem, const void* global, bool inside) {
  const unsigned dst = static_cast<unsigned>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(global),
               "r"(inside ? 16 : 0));
}

// 64 rows of D halves, global -> padded shared rows; rows past the sequence become zeros
__device__ __forceinline__ void load_tile(__half* tile, const __half* src, int row0, int S) {
  constexpr int CHUNKS = D / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS, chunk = i % CHUNKS;
    const bool inside = row0 + row < S;
    const long long from = inside ? static_cast<long long>(row0 + row) * D + chunk * 8 : 0;
    copy_16_bytes(tile + row * LD + chunk * 8, src + from, inside);
  }
}

// lse and delta of 64 rows; both are padded, so no row is past their end
__device__ __forceinline__ void load_statistics(float* smem, const float* lse, const float* delta,
                                                int row0) {
  const int i = threadIdx.x;
  if (i < 2 * ROWS / 4) {
    const float* from = i < ROWS / 4 ? lse + row0 + 4 * i : delta + row0 + 4 * (i - ROWS / 4);
    copy_16_bytes(smem + 4 * i, from, true);
  }
}

// 16 x 16 floats -> halves in rows of `ld`; two lanes a row
__device__ __forceinline__ void to_halves(const float* tile, __half* dst, long long ld) {
  const int lane = threadIdx.x & 31, row = lane >> 1, col = (lane & 1) * 8;
  const float4 lo = *reinterpret_cast<const float4*>(tile + row * F_LD + col);
  const float4 hi = *reinterpret_cast<const float4*>(tile + row * F_LD + col + 4);
  __half2 packed[4] = {__floats2half2_rn(lo.x, lo.y), __floats2half2_rn(lo.z, lo.w),
                       __floats2half2_rn(hi.x, hi.y), __floats2half2_rn(hi.z, hi.w)};
  *reinterpret_cast<uint4*>(dst + row * ld + col) = *reinterpret_cast<uint4*>(packed);
}

// ROUND, then ACCUMULATE: acc [16, D] += fragment [16, 16] rows [16, D]
__device__ __forceinline__ void multiply_add(FragC (&acc)[DF], const FragC& fragment,
                                             const __half* rows, Scratch& scratch) {
  wmma::store_matrix_sync(scratch.tile, fragment, F_LD, wmma::mem_row_major);
  __syncwarp();
  to_halves(scratch.tile, scratch.operand, P_LD);
  __syncwarp();
  FragA left;
  wmma::load_matrix_sync(left, scratch.operand, P_LD);
#pragma unroll
  for (int d = 0; d < DF; ++d) {
    FragB right;
    wmma::load_matrix_sync(right, rows + d * 16, LD);
    wmma::mma_sync(acc[d], left, right, acc[d]);
  }
}

// acc * factor -> 16 rows of `out`, those inside the sequence
__device__ __forceinline__ void store_rows(FragC (&acc)[DF], float factor, __half* out, int first_row,
                                           int S, Scratch& scratch) {
  const int lane = threadIdx.x & 31, row = first_row + (lane >> 1);
#pragma unroll
  for (int d = 0; d < DF; ++d) {
#pragma unroll
    for (int e = 0; e < acc[d].num_elements; ++e) acc[d].x[e] *= factor;
    wmma::store_matrix_sync(scratch.tile, acc[d], F_LD, wmma::mem_row_major);
    __syncwarp();
    if (row < S) to_halves(scratch.tile, out + static_cast<long long>(first_row) * D + d * 16, D);
    __syncwarp();
  }
}

template <bool KEYS>
__device__ __forceinline__ void gradients(const __half* a1, const __half* a2, const __half* b1,
                                          const __half* b2, const float* lse, const float* delta,
                                          __half* out1, __half* out2, int S, float sm_scale,
                                          float scale_log2, bool causal) {
  extern __shared__ __align__(128) unsigned char raw[];
  Shared& smem = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32;
  Scratch& scratch = smem.scratch[warp];
  const int tiles = (S + ROWS - 1) / ROWS, at = static_cast<int>(blockIdx.x % tiles);
  const int own = KEYS ? at : tiles - 1 - at;  // causal: early keys and late queries have most to do
  const long long bh = blockIdx.x / tiles, head = bh * S * D;
  a1 += head, a2 += head, b1 += head, b2 += head, out1 += head, out2 += head;
  lse += bh * tiles * ROWS, delta += bh * tiles * ROWS;
  const int own0 = own * ROWS + warp * 16;  // first row of this warp
  const int begin = KEYS && causal ? own : 0, end = !KEYS && causal ? own + 1 : tiles;

  // LOAD the owned rows and the first streamed tile
  if (threadIdx.x < 16) smem.index[threadIdx.x] = threadIdx.x;
  load_tile(smem.a, a1, own * ROWS, S);
  load_tile(smem.a + TILE, a2, own * ROWS, S);
  load_tile(smem.b[0], b1, begin * ROWS, S);
  load_tile(smem.b[0] + TILE, b2, begin * ROWS, S);
  load_statistics(smem.statistics[0], lse, delta, (KEYS ? begin : own) * ROWS);
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  const __half* a1_smem = smem.a + warp * 16 * LD;
  const __half* a2_smem = a1_smem + TILE;
  FragA a1_held[HOLD_A ? DF : 1], a2_held[HOLD_A ? DF : 1];
  if (HOLD_A) {
#pragma unroll
    for (int kk = 0; kk < DF; ++kk) {
      wmma::load_matrix_sync(a1_held[kk], a1_smem + kk * 16, LD);
      wmma::load_matrix_sync(a2_held[kk], a2_smem + kk * 16, LD);
    }
  }
  FragC lse_frag, delta_frag, row, col;
  wmma::load_matrix_sync(row, smem.index, 0, wmma::mem_col_major);  // element (i, j) = i
  wmma::load_matrix_sync(col, smem.index, 0, wmma::mem_row_major);  // element (i, j) = j
  if (!KEYS) {  // owned rows are queries: their statistics repeat along a row
    wmma::load_matrix_sync(lse_frag, smem.statistics[0] + warp * 16, 0, wmma::mem_col_major);
    wmma::load_matrix_sync(delta_frag, smem.statistics[0] + ROWS + warp * 16, 0,
                           wmma::mem_col_major);
  }
  FragC acc1[DF], acc2[KEYS ? DF : 1];
#pragma unroll
  for (int d = 0; d < DF; ++d) {
    wmma::fill_fragment(acc1[d], 0.0f);
    if (KEYS) wmma::fill_fragment(acc2[d], 0.0f);
  }

  for (int j = begin, stage = 0; j < end; ++j, stage ^= 1) {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();  // tile j has arrived; nobody reads the other stage any more
    if (j + 1 < end) {
      load_tile(smem.b[stage ^ 1], b1, (j + 1) * ROWS, S);
      load_tile(smem.b[stage ^ 1] + TILE, b2, (j + 1) * ROWS, S);
      if (KEYS) load_statistics(smem.statistics[stage ^ 1], lse, delta, (j + 1) * ROWS);
      asm volatile("cp.async.commit_group;");
    }
    for (int n = 0; n < ROWS / 16; ++n) {  // 16 streamed rows at a time
      const int other0 = j * ROWS + n * 16;
      const int key0 = KEYS ? own0 : other0, query0 = KEYS ? other0 : own0;
      if (other0 >= S || (causal && key0 > query0 + 15)) continue;  // the same for a whole warp
      const __half* b1_smem = smem.b[stage] + n * 16 * LD;
      const __half* b2_smem = b1_smem + TILE;

      // SCORES: s = a1 b1^T, dp = a2 b2^T, [16 owned, 16 streamed]
      FragC s, dp;
      wmma::fill_fragment(s, 0.0f);
      wmma::fill_fragment(dp, 0.0f);
#pragma unroll
      for (int kk = 0; kk < DF; ++kk) {
        FragBt right;
        FragA left;
        wmma::load_matrix_sync(right, b1_smem + kk * 16, LD);
        if (!HOLD_A) wmma::load_matrix_sync(left, a1_smem + kk * 16, LD);
        wmma::mma_sync(s, HOLD_A ? a1_held[HOLD_A ? kk : 0] : left, right, s);
        wmma::load_matrix_sync(right, b2_smem + kk * 16, LD);
        if (!HOLD_A) wmma::load_matrix_sync(left, a2_smem + kk * 16, LD);
        wmma::mma_sync(dp, HOLD_A ? a2_held[HOLD_A ? kk : 0] : left, right, dp);
      }

      // MASK, P, DS: s becomes p, dp becomes ds
      if (KEYS) {  // streamed rows are queries: their statistics repeat along a column
        const float* now = smem.statistics[stage] + n * 16;
        wmma::load_matrix_sync(lse_frag, now, 0, wmma::mem_row_major);
        wmma::load_matrix_sync(delta_frag, now + ROWS, 0, wmma::mem_row_major);
      }
      const bool masked = (causal && key0 + 15 > query0) || (!KEYS && other0 + 16 > S);
      const float offset = static_cast<float>(other0 - own0);
      const float last_col = static_cast<float>(S - 1 - other0);
#pragma unroll
      for (int e = 0; e < s.num_elements; ++e) {
        float p = exp2f(s.x[e] * scale_log2 - lse_frag.x[e]);
        if (masked) {
          const float ahead = col.x[e] - row.x[e] + offset;  // streamed index - owned index
          const bool future = causal && (KEYS ? ahead < 0.0f : ahead > 0.0f);
          if (future || (!KEYS && col.x[e] > last_col)) p = 0.0f;
        }
        s.x[e] = p;
        dp.x[e] = p * (dp.x[e] - delta_frag.x[e]);
      }

      // ROUND, ACCUMULATE
      if (KEYS) multiply_add(reinterpret_cast<FragC(&)[DF]>(acc2), s, b2_smem, scratch);
      multiply_add(acc1, dp, b1_smem, scratch);
    }
  }

  // STORE
  if (KEYS) store_rows(reinterpret_cast<FragC(&)[DF]>(acc2), 1.0f, out2, own0, S, scratch);
  store_rows(acc1, sm_scale, out1, own0, S, scratch);
}

// dK and dV of 64 keys
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    wmma_lab_keys(const __half* __restrict__ q, const __half* __restrict__ k,
                  const __half* __restrict__ v, const __half* __restrict__ d_o,
                  const float* __restrict__ lse, const float* __restrict__ delta, __half* dk,
                  __half* dv, int S, float sm_scale, float scale_log2, int causal) {
  gradients<true>(k, v, q, d_o, lse, delta, dk, dv, S, sm_scale, scale_log2, causal);
}

// dQ of 64 queries
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    wmma_lab_queries(const __half* __restrict__ q, const __half* __restrict__ k,
                     const __half* __restrict__ v, const __half* __restrict__ d_o,
                     const float* __restrict__ lse, const float* __restrict__ delta, __half* dq,
                     int S, float sm_scale, float scale_log2, int causal) {
  gradients<false>(q, d_o, k, v, lse, delta, dq, dq, S, sm_scale, scale_log2, causal);
}

// STATISTICS: one warp a row. Past the last row lse is +inf, so p is 0 there and needs no mask.
extern "C" __global__ void __launch_bounds__(THREADS)
    wmma_lab_statistics(const __half* __restrict__ o, const __half* __restrict__ d_o,
                        const float* __restrict__ lse, float* lse_log2, float* delta, int S,
                        int padded) {
  const int lane = threadIdx.x & 31, row = blockIdx.x * WARPS + threadIdx.x / 32;
  const long long bh = blockIdx.y, from = (bh * S + row) * D;
  float sum = 0.0f;
  if (row < S)
    for (int i = lane * 2; i < D; i += 64) {
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(o + from + i));
      const float2 y = __half22float2(*reinterpret_cast<const __half2*>(d_o + from + i));
      sum += x.x * y.x + x.y * y.y;
    }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) {
    delta[bh * padded + row] = sum;
    lse_log2[bh * padded + row] =
        row < S ? lse[bh * S + row] * 1.4426950408889634f : __int_as_float(0x7f800000);
  }
}
