// Rung 3, tensor cores: mma.sync m16n8k16 for both products, running max, denominator and accumulators
// in registers, P never leaves them. Operands are read from shared memory two halves at a time.
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous fp16, D = 64 or 128
//            4 warps x 16 rows;  q fragments in registers;  k_smem, v_smem [64, D + 8], one stage
// Phases   LOAD  SCORE  SOFTMAX  ACCUMULATE  STORE
// Bound    shared-memory instructions: V's fragments are columns, one half per load
#include <cuda_fp16.h>

constexpr int kTile = 64, kThreads = 128;

// c[16 x 8] += a[16 x 16] * b[16 x 8], fp16 in, fp32 accumulate
__device__ __forceinline__ void mma_16816(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                          unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned pack_half2(float lo, float hi) {
  __half2 h = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<unsigned*>(&h);
}
__device__ __forceinline__ unsigned pair(const __half* p) {
  return *reinterpret_cast<const unsigned*>(p);
}

template <int D>
__device__ __forceinline__ __half* at(__half* tile, int row, int col) {
  return tile + row * (D + 8) + col;
}

// fragment b0, b1 of K^T: keys n .. n + 7, dimensions k .. k + 15
template <int D>
__device__ __forceinline__ void key_fragment(unsigned (&b)[2], __half* k_smem, int n, int k) {
  const int lane = threadIdx.x & 31;
  b[0] = pair(at<D>(k_smem, n + lane / 4, k + (lane & 3) * 2));
  b[1] = pair(at<D>(k_smem, n + lane / 4, k + (lane & 3) * 2 + 8));
}
// fragment b0, b1 of V: keys k .. k + 15, dimensions n .. n + 7; the two halves lie in two rows
template <int D>
__device__ __forceinline__ void value_fragment(unsigned (&b)[2], __half* v_smem, int k, int n) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = k + (lane & 3) * 2 + 8 * i;
    const __half2 h = __halves2half2(*at<D>(v_smem, row, n + lane / 4),
                                     *at<D>(v_smem, row + 1, n + lane / 4));
    b[i] = *reinterpret_cast<const unsigned*>(&h);
  }
}

// rows [row0, row0 + 64) of a [S, D] matrix; rows past the end are zeros
template <int D>
__device__ __forceinline__ void load_tile(__half* tile, const __half* src, int row0, int S) {
#pragma unroll
  for (int i = threadIdx.x; i < kTile * D / 8; i += kThreads) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row0 + row < S)
      x = *reinterpret_cast<const uint4*>(src + static_cast<long long>(row0 + row) * D + chunk * 8);
    *reinterpret_cast<uint4*>(at<D>(tile, row, chunk * 8)) = x;
  }
}

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(kThreads)
    fa2_step(const __half* __restrict__ q, const __half* __restrict__ k,
             const __half* __restrict__ v, __half* __restrict__ o, int S, float c) {
  extern __shared__ __align__(128) __half smem[];
  __half* k_smem = smem;
  __half* v_smem = smem + kTile * (D + 8);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int m_blocks = (S + kTile - 1) / kTile;
  const int m_block = m_blocks - 1 - static_cast<int>(blockIdx.x % m_blocks);  // longest first
  const long long head = static_cast<long long>(blockIdx.x / m_blocks) * S * D;
  q += head, k += head, v += head, o += head;
  const int row = m_block * kTile + warp * 16 + lane / 4;  // this lane's rows: row and row + 8

  unsigned q_frag[D / 16][4];
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + (i & 1) * 8, col = kk * 16 + (i >> 1) * 8 + (lane & 3) * 2;
      q_frag[kk][i] = r < S ? pair(q + static_cast<long long>(r) * D + col) : 0u;
      if (c < 0.0f) q_frag[kk][i] ^= 0x80008000u;  // q takes the sign of the scale: -inf stays a mask
    }
  c = fmaxf(fabsf(c), 1e-30f);
  float acc[D / 8][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {0.f, 0.f};

  for (int j = CAUSAL ? m_block : m_blocks - 1; j >= 0; --j) {
    __syncthreads();
    load_tile<D>(k_smem, k, j * kTile, S);
    load_tile<D>(v_smem, v, j * kTile, S);
    __syncthreads();

    float s[kTile / 8][4] = {};  // SCORE
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
        unsigned b[2];
        key_fragment<D>(b, k_smem, n * 8, kk * 16);
        mma_16816(s[n], q_frag[kk], b[0], b[1]);
      }
    if (j == m_block || (j + 1) * kTile > S) {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int col = j * kTile + n * 8 + (lane & 3) * 2 + (e & 1);
          if (col >= S || (CAUSAL && col > row + (e >> 1) * 8)) s[n][e] = __int_as_float(0xff800000);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // SOFTMAX
      float top = s[0][2 * half];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
        top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      top = fmaxf(m[half], top * c);
      const float shrink = exp2f(m[half] - top);
      m[half] = top;
      l[half] *= shrink;
#pragma unroll
      for (int d = 0; d < D / 8; ++d) acc[d][2 * half] *= shrink, acc[d][2 * half + 1] *= shrink;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[n][e] = exp2f(fmaf(s[n][e], c, -top));
          l[half] += s[n][e];
        }
    }
#pragma unroll
    for (int kk = 0; kk < kTile / 16; ++kk) {  // ACCUMULATE
      const unsigned a[4] = {pack_half2(s[2 * kk][0], s[2 * kk][1]),
                             pack_half2(s[2 * kk][2], s[2 * kk][3]),
                             pack_half2(s[2 * kk + 1][0], s[2 * kk + 1][1]),
                             pack_half2(s[2 * kk + 1][2], s[2 * kk + 1][3])};
#pragma unroll
      for (int d = 0; d < D / 8; ++d) {
        unsigned b[2];
        value_fragment<D>(b, v_smem, kk * 16, d * 8);
        mma_16816(acc[d], a, b[0], b[1]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {  // STORE
    float sum = l[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (row + 8 * half >= S) continue;
    __half* out = o + static_cast<long long>(row + 8 * half) * D + (lane & 3) * 2;
#pragma unroll
    for (int d = 0; d < D / 8; ++d)
      *reinterpret_cast<unsigned*>(out + d * 8) =
          pack_half2(acc[d][2 * half] / sum, acc[d][2 * half + 1] / sum);
  }
}
