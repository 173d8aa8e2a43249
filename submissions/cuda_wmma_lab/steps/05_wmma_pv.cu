// Rung 5, tensor cores for P V as well: O lies in shared memory as fp32 and is rescaled there.
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous fp16, D = 64
//            block = 4 warps = 64 rows;  s_smem [16, 64] fp32 per warp;  o_smem [16, D] fp32 per warp
// Phases   LOAD  SCORE (wmma)  SOFTMAX (two lanes per row)  ACCUMULATE (wmma)  STORE
// Bound    shared memory: O is read and written twice per tile (rescale, accumulate)
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

constexpr int BM = 64, BN = 64, WARPS = 4;
constexpr int S_STRIDE = BN + 4;        // floats
constexpr int P_STRIDE = 2 * S_STRIDE;  // halves: P lies over S

using FragA = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
using FragKt = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major>;
using FragV = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major>;
using FragC = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// 64 rows of D halves by half2, global -> padded shared rows; rows past the sequence become zeros
template <int D>
__device__ __forceinline__ void load_tile(__half* tile, const __half* src, int row0, int S) {
  for (int i = threadIdx.x; i < 64 * D / 2; i += 32 * WARPS) {
    const int row = i / (D / 2), pair = i % (D / 2);
    __half2 x = __half2half2(__ushort_as_half(0));
    if (row0 + row < S)
      x = *reinterpret_cast<const __half2*>(src + static_cast<long long>(row0 + row) * D + 2 * pair);
    *reinterpret_cast<__half2*>(tile + row * (D + 8) + 2 * pair) = x;
  }
}

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(128)
    lab_step(const __half* __restrict__ q, const __half* __restrict__ k,
             const __half* __restrict__ v, __half* __restrict__ o, int S, float c) {
  constexpr int LD = D + 8, TILE = 64 * LD;
  extern __shared__ __align__(128) unsigned char smem[];
  __half* k_smem = reinterpret_cast<__half*>(smem);
  __half* v_smem = k_smem + TILE;
  __half* q_smem = v_smem + TILE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  float* s_smem = reinterpret_cast<float*>(q_smem + TILE) + warp * 16 * S_STRIDE;

  const int m_blocks = (S + BM - 1) / BM;
  const int m_block = m_blocks - 1 - static_cast<int>(blockIdx.x % m_blocks);  // longest first
  const long long head = static_cast<long long>(blockIdx.x / m_blocks) * S * D;
  q += head, k += head, v += head, o += head;
  const int first_row = m_block * BM + warp * 16, row = first_row + (lane >> 1);
  const int h = lane & 1;  // lanes 2r and 2r + 1 own row r: half of its keys, half of its output
  const int last = CAUSAL ? min(row, S - 1) : S - 1;
  const int tiles = CAUSAL ? m_block + 1 : m_blocks;

  load_tile<D>(q_smem, q, m_block * BM, S);
  __syncthreads();
  FragA q_frag[D / 16];
#pragma unroll
  for (int kk = 0; kk < D / 16; ++kk)
    wmma::load_matrix_sync(q_frag[kk], q_smem + warp * 16 * LD + kk * 16, LD);
  float* o_smem = reinterpret_cast<float*>(q_smem + TILE) + WARPS * 16 * S_STRIDE +
                  warp * 16 * (D + 4);
  for (int i = lane; i < 16 * (D + 4); i += 32) o_smem[i] = 0.0f;
  float m = __int_as_float(0xff800000), l = 0.0f;

  for (int j = 0; j < tiles; ++j) {
    __syncthreads();
    load_tile<D>(k_smem, k, j * BN, S);
    load_tile<D>(v_smem, v, j * BN, S);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < BN / 16; ++n) {
      wmma::fragment<wmma::accumulator, 16, 16, 16, float> s_frag;
      wmma::fill_fragment(s_frag, 0.0f);
#pragma unroll
      for (int kk = 0; kk < D / 16; ++kk) {
        FragKt k_frag;
        wmma::load_matrix_sync(k_frag, k_smem + n * 16 * LD + kk * 16, LD);
        wmma::mma_sync(s_frag, q_frag[kk], k_frag, s_frag);
      }
      wmma::store_matrix_sync(s_smem + n * 16, s_frag, S_STRIDE, wmma::mem_row_major);
    }
    __syncwarp();

    // two lanes per row: maximum, exponentials, sum
    float x[32], top = m;
#pragma unroll
    for (int t = 0; t < 32; ++t) {
      const int col = 32 * h + t;
      x[t] = j * BN + col <= last ? s_smem[(lane >> 1) * S_STRIDE + col] * c
                                  : __int_as_float(0xff800000);
      top = fmaxf(top, x[t]);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    const float shrink = exp2f(m - top);
    m = top;
    l *= shrink;
    __syncwarp();  // every lane has read its scores: P may overwrite them
    __half* p = reinterpret_cast<__half*>(s_smem) + (lane >> 1) * P_STRIDE + 32 * h;
#pragma unroll
    for (int t = 0; t < 32; t += 2) {
      const float p0 = exp2f(x[t] - m), p1 = exp2f(x[t + 1] - m);
      l += p0 + p1;
      *reinterpret_cast<__half2*>(p + t) = __floats2half2_rn(p0, p1);
    }
    float* o_row = o_smem + (lane >> 1) * (D + 4) + h * (D / 2);
#pragma unroll
    for (int d = 0; d < D / 2; ++d) o_row[d] *= shrink;
    __syncwarp();
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      FragC o_frag;
      wmma::load_matrix_sync(o_frag, o_smem + d * 16, D + 4, wmma::mem_row_major);
#pragma unroll
      for (int kk = 0; kk < BN / 16; ++kk) {
        FragA p_frag;
        FragV v_frag;
        wmma::load_matrix_sync(p_frag, reinterpret_cast<__half*>(s_smem) + kk * 16, P_STRIDE);
        wmma::load_matrix_sync(v_frag, v_smem + kk * 16 * LD + d * 16, LD);
        wmma::mma_sync(o_frag, p_frag, v_frag, o_frag);
      }
      wmma::store_matrix_sync(o_smem + d * 16, o_frag, D + 4, wmma::mem_row_major);
    }
    __syncwarp();
  }
  l += __shfl_xor_sync(0xffffffffu, l, 1);
  if (row >= S) return;
#pragma unroll
  for (int d = 0; d < D / 2; ++d)
    o[static_cast<long long>(row) * D + h * (D / 2) + d] =
        __float2half(o_smem[(lane >> 1) * (D + 4) + h * (D / 2) + d] / l);
}
