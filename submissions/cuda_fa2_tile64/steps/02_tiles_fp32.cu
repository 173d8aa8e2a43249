// Rung 2, 64 x 64 tiles on the FP32 units: K and V in shared memory, online softmax, 4 x 4 scores and
// 4 x (D / 16) outputs per thread in registers. Nothing of size S x S is written anywhere.
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous fp16, D = 64 or 128; computed in fp32
//            256 threads as 16 x 16; thread (ty, tx): S[4 ty + i][4 tx + j]; qt, kt [D, 64]; v [64, D]
// Phases   LOAD  SCORE  SOFTMAX  ACCUMULATE  STORE, one tile at a time, nothing overlapped
// Bound    67 TFLOP/s of FP32 FMA (H200); per 16 FMA two 16-byte shared loads
#include <cuda_fp16.h>

constexpr int kTile = 64, kThreads = 256, kLd = kTile + 4;

__device__ __forceinline__ float4 load4(const __half* p) {
  const float2 a = __half22float2(reinterpret_cast<const __half2*>(p)[0]);
  const float2 b = __half22float2(reinterpret_cast<const __half2*>(p)[1]);
  return make_float4(a.x, a.y, b.x, b.y);
}

// rows [row0, row0 + 64) of a [S, D] matrix, transposed to [D, 64]; rows past the end are zeros
template <int D>
__device__ void load_transposed(float* dst, const __half* src, int row0, int S) {
  for (int i = threadIdx.x; i < kTile * D / 4; i += kThreads) {
    const int row = i % kTile, d = i / kTile * 4;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + row < S) x = load4(src + static_cast<long long>(row0 + row) * D + d);
    dst[(d + 0) * kLd + row] = x.x;
    dst[(d + 1) * kLd + row] = x.y;
    dst[(d + 2) * kLd + row] = x.z;
    dst[(d + 3) * kLd + row] = x.w;
  }
}

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(kThreads, 2)
    fa2_step(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
             __half* __restrict__ o, int S, float c) {
  extern __shared__ __align__(16) float smem_fp32[];
  constexpr int N = D / 64;  // groups of 4 output columns per thread
  float* qt = smem_fp32;
  float* kt = qt + D * kLd;
  float* pt = kt;
  float* v_smem = kt + D * kLd;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int m_blocks = (S + kTile - 1) / kTile;
  const int m_block = m_blocks - 1 - static_cast<int>(blockIdx.x % m_blocks);
  const long long head = static_cast<long long>(blockIdx.x / m_blocks) * S * D;
  q += head, k += head, v += head, o += head;

  float acc[4][4 * N] = {}, m[4], l[4] = {};
  for (int i = 0; i < 4; ++i) m[i] = __int_as_float(0xff800000);
  load_transposed<D>(qt, q, m_block * kTile, S);
  const int tiles = CAUSAL ? m_block + 1 : m_blocks;
  for (int j = 0; j < tiles; ++j) {
    __syncthreads();
    load_transposed<D>(kt, k, j * kTile, S);
    for (int i = threadIdx.x; i < kTile * D / 4; i += kThreads) {
      const int row = j * kTile + i / (D / 4);
      reinterpret_cast<float4*>(v_smem)[i] =
          row < S ? load4(v + static_cast<long long>(row) * D + 4 * (i % (D / 4)))
                  : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    __syncthreads();

    float s[4][4] = {};
#pragma unroll 8
    for (int d = 0; d < D; ++d) {
      const float4 a = *reinterpret_cast<const float4*>(qt + d * kLd + 4 * ty);
      const float4 b = *reinterpret_cast<const float4*>(kt + d * kLd + 4 * tx);
      const float row[4] = {a.x, a.y, a.z, a.w}, col[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int t = 0; t < 4; ++t) s[i][t] = fmaf(row[i], col[t], s[i][t]);
    }
    __syncthreads();  // kt was read: P may overwrite it
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = m_block * kTile + 4 * ty + i;
      float top = m[i];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int col = j * kTile + 4 * tx + t;
        s[i][t] = col < S && (!CAUSAL || col <= row) ? s[i][t] * c : __int_as_float(0xff800000);
        top = fmaxf(top, s[i][t]);
      }
#pragma unroll
      for (int x = 8; x > 0; x /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, x));
      const float shrink = exp2f(m[i] - top);
      m[i] = top;
      l[i] *= shrink;
#pragma unroll
      for (int t = 0; t < 4 * N; ++t) acc[i][t] *= shrink;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        s[i][t] = exp2f(s[i][t] - top);
        l[i] += s[i][t];
      }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t)
      *reinterpret_cast<float4*>(pt + (4 * tx + t) * kLd + 4 * ty) =
          make_float4(s[0][t], s[1][t], s[2][t], s[3][t]);
    __syncthreads();
#pragma unroll 8
    for (int key = 0; key < kTile; ++key) {
      const float4 a = *reinterpret_cast<const float4*>(pt + key * kLd + 4 * ty);
      const float p[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float4 b = *reinterpret_cast<const float4*>(v_smem + key * D + n * 64 + 4 * tx);
        const float col[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int t = 0; t < 4; ++t) acc[i][4 * n + t] = fmaf(p[i], col[t], acc[i][4 * n + t]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = m_block * kTile + 4 * ty + i;
    float sum = l[i];
#pragma unroll
    for (int x = 8; x > 0; x /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, x);
    if (row >= S) continue;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      __half2* out = reinterpret_cast<__half2*>(o + static_cast<long long>(row) * D + n * 64 + 4 * tx);
      out[0] = __floats2half2_rn(acc[i][4 * n] / sum, acc[i][4 * n + 1] / sum);
      out[1] = __floats2half2_rn(acc[i][4 * n + 2] / sum, acc[i][4 * n + 3] / sum);
    }
  }
}
