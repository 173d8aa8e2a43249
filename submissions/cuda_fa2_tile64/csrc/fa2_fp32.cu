// FlashAttention-2 forward in float32 on CUDA cores: the same 64 x 64 tiles and the same online
// softmax as fa2_tile64.cu, in the precision that checks the algorithm rather than the rounding.
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous float32, D = 64 or 128
//
//              tx = 0 ... 15 (4 keys each)         256 threads as 16 x 16
//            +----+----+----+----+                 thread (ty, tx): S[4 ty + i][4 tx + j],
//   ty = 0   | 4x4| 4x4|    |    |                 O[4 ty + i][D / 16 columns], m, l of 4 rows
//   ...      |    |    |    |    |  <- S 64 x 64   qt, kt [D, 64] transposed; v [64, D]
//   ty = 15  +----+----+----+----+                 pt [64 keys, 64 rows] over kt
//
// Phases   LOAD  SCORE  SOFTMAX  ACCUMULATE  STORE, one tile at a time, nothing overlapped
// Bound    67 TFLOP/s of FP32 FMA (H200); per 16 FMA two 16-byte shared loads
// Measured one H200, (4, 8, 4096, 64) causal: 2.71 ms, 25 TFLOP/s
#include <cuda_runtime.h>

namespace {

constexpr int kTile = 64, kThreads = 256, kLd = kTile + 4;

// qt, then kt (pt lies over it: D >= 64 rows), then v
template <int D>
constexpr int kSmemBytes = 4 * (D * kLd + D * kLd + kTile * D);

// rows [row0, row0 + 64) of a [S, D] matrix, transposed to [D, 64]; rows past the end are zeros
template <int D>
__device__ void load_transposed(float* dst, const float* src, int row0, int S) {
  for (int i = threadIdx.x; i < kTile * D / 4; i += kThreads) {
    const int row = i % kTile, d = i / kTile * 4;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + row < S)
      x = *reinterpret_cast<const float4*>(src + static_cast<long long>(row0 + row) * D + d);
    dst[(d + 0) * kLd + row] = x.x;
    dst[(d + 1) * kLd + row] = x.y;
    dst[(d + 2) * kLd + row] = x.z;
    dst[(d + 3) * kLd + row] = x.w;
  }
}

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(kThreads, 2)
    fa2_fp32(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
             float* __restrict__ o, int S, float c) {
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
  for (int i = 0; i < 4; ++i) m[i] = -__builtin_huge_valf();
  load_transposed<D>(qt, q, m_block * kTile, S);
  const int tiles = CAUSAL ? m_block + 1 : m_blocks;
  for (int j = 0; j < tiles; ++j) {
    __syncthreads();
    load_transposed<D>(kt, k, j * kTile, S);
    for (int i = threadIdx.x; i < kTile * D / 4; i += kThreads) {
      const int row = j * kTile + i / (D / 4);
      reinterpret_cast<float4*>(v_smem)[i] =
          row < S ? reinterpret_cast<const float4*>(v + static_cast<long long>(row) * D)[i % (D / 4)]
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
        s[i][t] = col < S && (!CAUSAL || col <= row) ? s[i][t] * c : -__builtin_huge_valf();
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
    for (int n = 0; n < N; ++n)
      *reinterpret_cast<float4*>(o + static_cast<long long>(row) * D + n * 64 + 4 * tx) =
          make_float4(acc[i][4 * n] / sum, acc[i][4 * n + 1] / sum, acc[i][4 * n + 2] / sum,
                      acc[i][4 * n + 3] / sum);
  }
}

template <int D>
cudaError_t launch_fp32(const float* q, const float* k, const float* v, float* o, int heads, int S,
                        bool causal, float c, cudaStream_t stream) {
  const auto kernel = causal ? fa2_fp32<D, true> : fa2_fp32<D, false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes<D>);
  if (error != cudaSuccess) return error;
  const unsigned blocks = static_cast<unsigned>((S + kTile - 1) / kTile) * heads;
  kernel<<<blocks, kThreads, kSmemBytes<D>, stream>>>(q, k, v, o, S, c);
  return cudaGetLastError();
}

}  // namespace

// D = 64 or 128. Returns a cudaError_t.
extern "C" int fa2_tile64_fp32(const void* q, const void* k, const void* v, void* o, int heads,
                               int S, int D, int causal, float scale, cudaStream_t stream) {
  const auto launch = D == 64 ? launch_fp32<64> : D == 128 ? launch_fp32<128> : nullptr;
  if (launch == nullptr) return static_cast<int>(cudaErrorInvalidValue);
  return static_cast<int>(launch(static_cast<const float*>(q), static_cast<const float*>(k),
                                 static_cast<const float*>(v), static_cast<float*>(o), heads, S,
                                 causal != 0, scale * 1.4426950408889634f, stream));
}
