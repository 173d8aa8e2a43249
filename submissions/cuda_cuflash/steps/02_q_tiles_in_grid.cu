// Rung 2, query tiles in the grid: one block per (batch, head, query tile), longest rows first.
//
// Shapes   q, k, v, o  [B, H, N, d] by strides, fp16, d = 32, 64, 128; Br = 64, Bc = 64 (32 at 128)
//            thread t: row t / 2 of the query tile, every second key, every second chunk of d
//            q_smem [64, d], k_smem and v_smem [Bc, d] half, s_smem [64, Bc] fp32
// Phases   LOAD  SCORE (dot_product_fp16_to_fp32)  SOFTMAX  ACCUMULATE  STORE; tiles above the
//          diagonal are skipped
// Bound    shared memory: a warp's 32 lanes read 16 query rows that lie 2 d bytes apart, so their
//          16-byte chunks share bank groups; the FP32 units come after that
#include <cuda_fp16.h>

constexpr int Br = 64, kThreads = 128;

template <int d>
__device__ __forceinline__ int chunk_at(int row, int chunk) {  // where a 16-byte chunk lies
  return row * (d / 8) + chunk;
}

// rows [row0, row0 + ROWS) by 16-byte loads; rows past the sequence become zeros
template <int ROWS, int d>
__device__ __forceinline__ void load_tile(uint4* tile, const __half* src, long long stride_n,
                                          int row0, int N) {
  for (int i = threadIdx.x; i < ROWS * d / 8; i += kThreads) {
    const int row = i / (d / 8), chunk = i % (d / 8);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row0 + row < N)
      x = __ldg(reinterpret_cast<const uint4*>(src + (row0 + row) * stride_n) + chunk);
    tile[chunk_at<d>(row, chunk)] = x;
  }
}

// q row . k row, fp16 in, fp32 out (section 6.2 of the document)
template <int d>
__device__ __forceinline__ float dot_product_fp16_to_fp32(const uint4* q, int q_row, const uint4* k,
                                                          int k_row) {
  float sum = 0.0f;
#pragma unroll
  for (int chunk = 0; chunk < d / 8; ++chunk) {
    const uint4 a = q[chunk_at<d>(q_row, chunk)], b = k[chunk_at<d>(k_row, chunk)];
    const __half2* x = reinterpret_cast<const __half2*>(&a);
    const __half2* y = reinterpret_cast<const __half2*>(&b);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 u = __half22float2(x[t]), w = __half22float2(y[t]);
      sum = fmaf(u.x, w.x, fmaf(u.y, w.y, sum));
    }
  }
  return sum;
}

template <int d, int Bc, bool CAUSAL>
__device__ __forceinline__ void query_tile(const __half* q, const __half* k, const __half* v,
                                           __half* out, int tile_q, int N, long long q_stride_n,
                                           long long k_stride_n, long long v_stride_n,
                                           long long o_stride_n, float c, unsigned char* smem) {
  uint4* q_smem = reinterpret_cast<uint4*>(smem);
  uint4* k_smem = q_smem + Br * d / 8;
  uint4* v_smem = k_smem + Bc * d / 8;
  float* s_smem = reinterpret_cast<float*>(v_smem + Bc * d / 8);
  const int r = threadIdx.x / 2, part = threadIdx.x & 1, row = tile_q * Br + r;
  float o[d / 2] = {}, m = __int_as_float(0xff800000), l = 0.0f;
  load_tile<Br, d>(q_smem, q, q_stride_n, tile_q * Br, N);
  const int tiles_all = (N + Bc - 1) / Bc;
  for (int tile_kv = 0; tile_kv < tiles_all; ++tile_kv) {
    if (CAUSAL && tile_kv * Bc > tile_q * Br + Br - 1) continue;  // above the diagonal
    __syncthreads();
    load_tile<Bc, d>(k_smem, k, k_stride_n, tile_kv * Bc, N);
    load_tile<Bc, d>(v_smem, v, v_stride_n, tile_kv * Bc, N);
    __syncthreads();
    float top = m;
    for (int j = part; j < Bc; j += 2) {
      const int col = tile_kv * Bc + j;
      const float score = dot_product_fp16_to_fp32<d>(q_smem, r, k_smem, j) * c;
      s_smem[r * Bc + j] = col < N && (!CAUSAL || col <= row) ? score : __int_as_float(0xff800000);
      top = fmaxf(top, s_smem[r * Bc + j]);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    const float shrink = exp2f(m - top);
    m = top;
    l *= shrink;
    for (int j = part; j < Bc; j += 2) {
      const float p = exp2f(s_smem[r * Bc + j] - m);
      s_smem[r * Bc + j] = p;
      l += p;
    }
    __syncwarp();  // both lanes of a row are in one warp
#pragma unroll
    for (int i = 0; i < d / 2; ++i) o[i] *= shrink;
    for (int j = 0; j < Bc; ++j) {
      const float p = s_smem[r * Bc + j];
#pragma unroll
      for (int chunk = 0; chunk < d / 16; ++chunk) {
        const uint4 x = v_smem[chunk_at<d>(j, 2 * chunk + part)];
        const __half2* y = reinterpret_cast<const __half2*>(&x);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float2 w = __half22float2(y[t]);
          o[8 * chunk + 2 * t] = fmaf(p, w.x, o[8 * chunk + 2 * t]);
          o[8 * chunk + 2 * t + 1] = fmaf(p, w.y, o[8 * chunk + 2 * t + 1]);
        }
      }
    }
  }
  l += __shfl_xor_sync(0xffffffffu, l, 1);
  if (row >= N) return;
#pragma unroll
  for (int chunk = 0; chunk < d / 16; ++chunk) {
    __half2 packed[4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
      packed[t] = __floats2half2_rn(o[8 * chunk + 2 * t] / l, o[8 * chunk + 2 * t + 1] / l);
    *(reinterpret_cast<uint4*>(out + row * o_stride_n) + 2 * chunk + part) =
        *reinterpret_cast<uint4*>(packed);
  }
}

template <int d, bool CAUSAL>
__global__ void __launch_bounds__(kThreads)
    cuflash_step(const __half* __restrict__ q, const __half* __restrict__ k,
                 const __half* __restrict__ v, __half* __restrict__ o, int H, int N, float c,
                 long long q_stride_b, long long q_stride_h, long long q_stride_n,
                 long long k_stride_b, long long k_stride_h, long long k_stride_n,
                 long long v_stride_b, long long v_stride_h, long long v_stride_n,
                 long long o_stride_b, long long o_stride_h, long long o_stride_n) {
  constexpr int Bc = d == 128 ? 32 : 64;
  extern __shared__ __align__(128) unsigned char smem[];
  const int q_tiles = (N + Br - 1) / Br;
  const int bh = blockIdx.x / q_tiles, b = bh / H, h = bh % H;
  q += b * q_stride_b + h * q_stride_h;
  k += b * k_stride_b + h * k_stride_h;
  v += b * v_stride_b + h * v_stride_h;
  o += b * o_stride_b + h * o_stride_h;
  const int tile_q = q_tiles - 1 - static_cast<int>(blockIdx.x % q_tiles);  // longest first
  query_tile<d, Bc, CAUSAL>(q, k, v, o, tile_q, N, q_stride_n, k_stride_n, v_stride_n, o_stride_n,
                            c, smem);
}
