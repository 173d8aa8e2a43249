// CuFlash-Attn forward: fp16 in, fp32 accumulation, 128 threads, Br = 64 query rows, Bc = 64 keys
// (32 at d = 128), tensors described by strides. Query tiles are in the grid.
//
// Shapes   q, k, v, o  [B, H, N, d] with any strides over B, H and N (unit stride over d), d = 32,
//          64, 128; strides are multiples of 8 elements (16-byte rows)
//
//                      tile_kv = 0 ... tile_q            one block = 4 warps, warp w owns rows
//           +------+------+------+------+                [16 w, 16 w + 16) of S, P and O
//  tile_q   | full | full | diag | skip |                q_smem [64, d] dead once in registers
//           +------+------+------+------+                k_smem, v_smem [Bc, d] two stages
//                                                        m, l, o: registers, fp32
//
// Phases   LOAD (16-byte cp.async, one tile ahead)  SCORE  SOFTMAX  ACCUMULATE
//          STORE (16 bytes per lane)
// Shared memory is conflict-free without a transpose: 16-byte chunk c of row r lies at chunk
// c ^ (r mod 8) (at d = 32, two rows per 128 bytes, c ^ (r / 2 mod 4)), so the eight rows of an
// ldmatrix phase, and the eight lanes of a store phase, touch eight different bank groups.
//
// Bound    4 N^2 d B H / 2 FLOP causal at the mma.sync rate (reported: 62 % of 989 TFLOP/s on sm_90)
// Measured one H200, causal: hdim64_seq4k 0.954 ms, 288 TFLOP/s; hdim128_seq8k 1.731 ms, 318 TFLOP/s
// Limits   fp16; unit stride over d
// Run      python run.py --submission cuda_cuflash
// Source   Dao et al., FlashAttention (2022), algorithm 1; Milakov & Gimelshein (2018), algorithm 3.
#include <cuda_fp16.h>

constexpr int kBr = 64;
constexpr int kThreads = 128;

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

template <int d>
__device__ __forceinline__ int swizzled(int row, int chunk) {  // byte offset in a [rows, d] tile
  const int x = d == 32 ? (row >> 1) & 3 : row & 7;
  return row * (2 * d) + ((chunk ^ x) << 4);
}

__device__ __forceinline__ unsigned smem_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Copies [ROWS, d] tiles global -> shared with 16-byte cp.async. A thread always carries chunk
// tid % (d / 8) of every kRowStep-th row, so it keeps one pointer and one address.
template <int ROWS, int d>
struct TileCopy {
  static constexpr int kChunks = d / 8, kRowStep = kThreads / kChunks;
  const uint4* from;  // this thread's chunk of the next tile's first row
  int row_vectors;    // distance of two rows, in 16-byte vectors
  unsigned to;

  __device__ __forceinline__ TileCopy(const __half* src, long long stride_n, int row0,
                                      unsigned tile)
      : row_vectors(static_cast<int>(stride_n / 8)) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    from = reinterpret_cast<const uint4*>(src + (row0 + row) * stride_n) + chunk;
    to = tile + swizzled<d>(row, chunk);
  }
  // rows [row0, row0 + ROWS), the rows after those of the last call; past the sequence: zeros.
  // kRowStep is a multiple of 8, the period of the swizzle: a row step is a constant offset.
  __device__ __forceinline__ void start(int row0, int N, unsigned stage_bytes) {
    const int row = row0 + threadIdx.x / kChunks;
#pragma unroll
    for (int r = 0; r < ROWS; r += kRowStep)  // with size 0 nothing is read, zeros are written
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + stage_bytes +
                                                                          r * 2 * d),
                   "l"(from + r * row_vectors), "r"(row + r < N ? 16 : 0));
    from += ROWS * row_vectors;
  }
};

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr));
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], unsigned addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr));
}
// c[16, 8] += a[16, 16] b[16, 8]
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
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where a lane points ldmatrix: (row, chunk) of the 8x8 matrix it addresses. The swizzle of the other
// chunks of that row is one XOR away, other rows 16 n further are a constant offset away.
template <int d>
struct LaneAddress {
  unsigned base, phase;
  __device__ __forceinline__ LaneAddress(unsigned tile, int row, int chunk)
      : base(tile + row * 2 * d), phase(swizzled<d>(row, chunk) - row * 2 * d) {}
  __device__ __forceinline__ unsigned at(int rows, int chunk_pair) const {
    return base + rows * 2 * d + (phase ^ (chunk_pair << 5));
  }
};

// SCORE: s [16, Bc] of this warp = q k^T
template <int d, int Bc>
__device__ __forceinline__ void score(float (&s)[Bc / 8][4], const unsigned (&q)[d / 16][4],
                                      const LaneAddress<d>& k_lane) {
#pragma unroll
  for (int n = 0; n < Bc / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
  for (int kk = 0; kk < d / 16; ++kk)
#pragma unroll
    for (int n = 0; n < Bc / 16; ++n) {
      unsigned b[4];  // two n8 tiles of keys, k16 deep
      ldmatrix_x4(b, k_lane.at(n * 16, kk));
      mma_16816(s[2 * n], q[kk], b[0], b[1]);
      mma_16816(s[2 * n + 1], q[kk], b[2], b[3]);
    }
}

// SOFTMAX: new maximum, rescale l and o, p over s
template <int d, int Bc>
__device__ __forceinline__ void online_softmax(float (&s)[Bc / 8][4], float (&o)[d / 8][4],
                                               float (&m)[2], float (&l)[2], float c) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = m[half];
#pragma unroll
    for (int n = 0; n < Bc / 8; ++n)
      top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (__any_sync(0xffffffffu, top > m[half])) {  // after the first tiles the maximum rarely moves
      const float shrink = exp2_approx((m[half] - top) * c);
      m[half] = top;
      l[half] *= shrink;
#pragma unroll
      for (int i = 0; i < d / 8; ++i) {
        o[i][2 * half] *= shrink;
        o[i][2 * half + 1] *= shrink;
      }
    }
    const float offset = m[half] * c;
#pragma unroll
    for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s[n][e] = exp2_approx(fmaf(s[n][e], c, -offset));
        l[half] += s[n][e];
      }
  }
}

// ACCUMULATE: o [16, d] += p v
template <int d, int Bc>
__device__ __forceinline__ void accumulate(float (&o)[d / 8][4], const float (&p)[Bc / 8][4],
                                           const LaneAddress<d>& v_lane) {
#pragma unroll
  for (int kk = 0; kk < Bc / 16; ++kk) {
    const unsigned a[4] = {pack_half2(p[2 * kk][0], p[2 * kk][1]),
                           pack_half2(p[2 * kk][2], p[2 * kk][3]),
                           pack_half2(p[2 * kk + 1][0], p[2 * kk + 1][1]),
                           pack_half2(p[2 * kk + 1][2], p[2 * kk + 1][3])};
#pragma unroll
    for (int i = 0; i < d / 16; ++i) {
      unsigned b[4];
      ldmatrix_x4_trans(b, v_lane.at(kk * 16, i));
      mma_16816(o[2 * i], a, b[0], b[1]);
      mma_16816(o[2 * i + 1], a, b[2], b[3]);
    }
  }
}

// keys after the query, and keys past the sequence, get -inf
template <int Bc, bool CAUSAL>
__device__ __forceinline__ void mask(float (&s)[Bc / 8][4], int row, int col0, int N, int lane) {
#pragma unroll
  for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int col = col0 + n * 8 + (lane & 3) * 2 + (e & 1);
      if (col >= N || (CAUSAL && col > row + (e >> 1) * 8)) s[n][e] = negative_infinity();
    }
}

// STORE: o / l as fp16 through this warp's 16 rows of q_smem, then 16 bytes per lane
template <int d>
__device__ __forceinline__ void store(unsigned char* tile, const float (&o)[d / 8][4],
                                      const float (&l)[2], __half* dst, long long stride_n,
                                      int row0, int N, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = l[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float inverse = 1.0f / sum;
    const int row = half * 8 + lane / 4;
#pragma unroll
    for (int i = 0; i < d / 8; ++i)
      *reinterpret_cast<unsigned*>(tile + swizzled<d>(row, i) + (lane & 3) * 4) =
          pack_half2(o[i][2 * half] * inverse, o[i][2 * half + 1] * inverse);
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * (d / 8); i += 32) {
    const int row = i / (d / 8), chunk = i % (d / 8);
    if (row0 + row < N)
      *(reinterpret_cast<uint4*>(dst + (row0 + row) * stride_n) + chunk) =
          *reinterpret_cast<const uint4*>(tile + swizzled<d>(row, chunk));
  }
}

// One query tile: q [64, d] against every kv tile it can see.
template <int d, int Bc, bool CAUSAL>
__device__ __forceinline__ void query_tile(const __half* q, const __half* k, const __half* v,
                                           __half* out, int tile_q, int N, long long q_stride_n,
                                           long long k_stride_n, long long v_stride_n,
                                           long long o_stride_n, float c, unsigned char* smem) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  constexpr unsigned kTileBytes = Bc * d * 2, kStageBytes = 2 * kTileBytes;
  unsigned char* q_smem = smem + 2 * kStageBytes;
  unsigned char* q_warp = q_smem + warp * 16 * d * 2;  // warp 16-row slices keep the swizzle phase

  // LOAD: q to registers; a negative softmax scale is folded into q so that -inf stays a mask
  const unsigned kv_smem = smem_address(smem);  // stage s: k at 2 s tiles, v behind it
  TileCopy<Bc, d> k_copy(k, k_stride_n, 0, kv_smem), v_copy(v, v_stride_n, 0, kv_smem + kTileBytes);
  TileCopy<kBr, d> q_copy(q, q_stride_n, tile_q * kBr, smem_address(q_smem));
  q_copy.start(tile_q * kBr, N, 0);
  k_copy.start(0, N, 0);
  v_copy.start(0, N, 0);
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  const LaneAddress<d> q_lane(smem_address(q_warp), lane & 15, lane >> 4);
  LaneAddress<d> k_lane(kv_smem, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  LaneAddress<d> v_lane(kv_smem + kTileBytes, lane & 15, lane >> 4);
  unsigned q_frag[d / 16][4];
  const unsigned flip = c < 0.0f ? 0x80008000u : 0u;
#pragma unroll
  for (int kk = 0; kk < d / 16; ++kk) {
    ldmatrix_x4(q_frag[kk], q_lane.at(0, kk));
#pragma unroll
    for (int i = 0; i < 4; ++i) q_frag[kk][i] ^= flip;
  }
  c = fmaxf(fabsf(c), 1e-30f);

  float o[d / 8][4], m[2] = {negative_infinity(), negative_infinity()}, l[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < d / 8; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;

  const int row = tile_q * kBr + warp * 16 + lane / 4;
  const int all_tiles = (N + Bc - 1) / Bc;
  const int tiles = CAUSAL ? min(all_tiles, (tile_q + 1) * kBr / Bc) : all_tiles;  // causal skip
  // tiles [0, full) need no mask
  const int full = CAUSAL ? min(tile_q * kBr / Bc, N / Bc) : N / Bc;
  int j = 0;
#pragma unroll  // twice: the tiles without a mask, then those with one
  for (int masked = 0; masked < 2; ++masked) {
    const int end = masked ? tiles : full;
#pragma unroll 1
    for (; j < end; ++j) {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      __syncthreads();  // tile j has arrived, and every warp has read tile j - 1
      if (j + 1 < tiles) {
        k_copy.start((j + 1) * Bc, N, (j + 1) % 2 * kStageBytes);
        v_copy.start((j + 1) * Bc, N, (j + 1) % 2 * kStageBytes);
        asm volatile("cp.async.commit_group;");
      }
      float s[Bc / 8][4];
      score<d, Bc>(s, q_frag, k_lane);
      if (masked) mask<Bc, CAUSAL>(s, row, j * Bc, N, lane);
      online_softmax<d, Bc>(s, o, m, l, c);
      accumulate<d, Bc>(o, s, v_lane);
      const unsigned other_stage = j % 2 ? -kStageBytes : kStageBytes;
      k_lane.base += other_stage;
      v_lane.base += other_stage;
    }
  }
  store<d>(q_warp, o, l, out, o_stride_n, tile_q * kBr + warp * 16, N, lane);
}

template <int d, bool CAUSAL, bool Q_TILES_IN_GRID>
__global__ void __launch_bounds__(kThreads, d == 32 ? 4 : 3)
    cuflash_forward(const __half* __restrict__ q, const __half* __restrict__ k,
                    const __half* __restrict__ v, __half* __restrict__ o, int H, int N, float c,
                    long long q_stride_b, long long q_stride_h, long long q_stride_n,
                    long long k_stride_b, long long k_stride_h, long long k_stride_n,
                    long long v_stride_b, long long v_stride_h, long long v_stride_n,
                    long long o_stride_b, long long o_stride_h, long long o_stride_n) {
  constexpr int Bc = d == 128 ? 32 : 64;
  extern __shared__ __align__(128) unsigned char smem[];
  const int q_tiles = (N + kBr - 1) / kBr;
  const int bh = Q_TILES_IN_GRID ? blockIdx.x / q_tiles : blockIdx.x;
  const int b = bh / H, h = bh % H;
  q += b * q_stride_b + h * q_stride_h;
  k += b * k_stride_b + h * k_stride_h;
  v += b * v_stride_b + h * v_stride_h;
  o += b * o_stride_b + h * o_stride_h;
  if constexpr (Q_TILES_IN_GRID) {
    const int tile_q = q_tiles - 1 - static_cast<int>(blockIdx.x % q_tiles);  // longest first
    query_tile<d, Bc, CAUSAL>(q, k, v, o, tile_q, N, q_stride_n, k_stride_n, v_stride_n,
                              o_stride_n, c, smem);
  } else {
    for (int tile_q = 0; tile_q < q_tiles; ++tile_q) {
      query_tile<d, Bc, CAUSAL>(q, k, v, o, tile_q, N, q_stride_n, k_stride_n, v_stride_n,
                                o_stride_n, c, smem);
      __syncthreads();  // q_smem is both this tile's output and the next tile's input
    }
  }
}
