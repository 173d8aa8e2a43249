// FlashAttention-2 forward on 64 x 64 tiles: one block owns 64 query rows, each of its 4 warps 16
// of them, and K/V stream through a two-stage cp.async ring into mma.sync m16n8k16.
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous; D = 64, 128, 256 in fp16 (fp32: see fa2_fp32.cu)
//
//             kv tiles, j = last ... 0  (causal: from the diagonal backwards)
//           +------+------+------+------+      q   [64, D]  fragments in registers (D = 256: smem)
//  warp 0   |  S0  |  S1  |  S2  | //// |      k,v [64, D]  2 stages in shared memory, swizzled
//  warp 1   |      |      |      | //// |      ref, l       per row, in the registers of the 4 lanes
//  warp 2   |      |      |      | //// |                   that share the row
//  warp 3   |      |      |      | //// |      o   [64, D]  fp32 accumulators in registers
//           +------+------+------+------+
//             full   full   diag   skip
//
// Phases   LOAD (cp.async, one tile ahead)  SCORE (S = Q K^T)  SOFTMAX  ACCUMULATE (O += P V)
//          STORE (O / l through shared memory, 16 bytes per lane)
//
// The softmax keeps a reference `ref` per row, not the running maximum: the first tile sets it to
// its exact row maximum, later tiles take P = 2^(c S - ref) at once. A lane's partial row sum bounds
// every P it holds, so "sum <= 2^15" proves that all fit fp16. If a warp sees a larger sum it
// recomputes S from the tile that still lies in shared memory, takes the exact maximum and rescales:
// correct for any input, and rarely taken.
//
// Bound    4 S^2 D B H / 2 FLOP causal; mma.sync on sm_90 is reported at about 62 % of the
//          989 TFLOP/s of wgmma, ldmatrix of 16-row warps 2048 FLOP/clk/SM (B operand read per 16 rows).
// Measured one H200, causal: hdim64_seq4k 0.885 ms, 311 TFLOP/s; hdim128_seq8k 1.728 ms, 318 TFLOP/s;
//          hdim256_seq16k 3.504 ms, 314 TFLOP/s
// Limits   fp16 in and out; one head dimension for q, k and v; no dropout, no bias.
// Run      python run.py --submission cuda_fa2_tile64 --suite seq4096
// Source   Dao, FlashAttention-2 (2023), sections 3.1 and 3.3 (split over rows, not over K).
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

constexpr float kNegInf = -__builtin_huge_valf();
constexpr float kSumLimit = 32768.0f;  // 2^15: below it no P of the lane can overflow fp16

__device__ __forceinline__ unsigned smem_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// 16 bytes global -> shared; with bytes = 0 (past the sequence) nothing is read, zeros are written
__device__ __forceinline__ void cp_async16(unsigned dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

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

// c[16 x 8] += a[16 x 16] * b[16 x 8], fp16 in, fp32 accumulate
__device__ __forceinline__ void mma_16816(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                          unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ unsigned pack_half2(float lo, float hi) {
  __half2 h = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<unsigned*>(&h);
}
__device__ __forceinline__ float quad_max(float x) {  // over the 4 lanes that share a row
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// One block's tile shape. WARP_ROWS = 16 is the 64 x 64 kernel of four warps; 32 halves the
// shared-memory reads per FLOP and is kept as a variant.
template <int D_, int BM_, int BN_, int WARP_ROWS_>
struct Tile {
  static constexpr int D = D_, BM = BM_, BN = BN_, WARP_ROWS = WARP_ROWS_;
  static constexpr int MT = WARP_ROWS / 16;            // m16 tiles per warp
  static constexpr int WARPS = BM / WARP_ROWS;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int CHUNKS = D / 8;                 // 16-byte chunks per row
  static constexpr int ROW_BYTES = 2 * D;
  static constexpr int KV_BYTES = BN * ROW_BYTES;      // one tile of K, or of V
  static constexpr int Q_BYTES = BM * ROW_BYTES;
  static constexpr bool Q_IN_REGS = MT * D <= 128;     // MT * D / 4 registers
  static constexpr int STAGE_BYTES = 2 * KV_BYTES;
  // Q in registers: its shared memory is stage 1, which is first written after Q was read
  static constexpr int Q_OFFSET = Q_IN_REGS ? STAGE_BYTES : 2 * STAGE_BYTES;
  static constexpr int Q_END = Q_OFFSET + Q_BYTES;
  static constexpr int SMEM_BYTES = Q_END > 2 * STAGE_BYTES ? Q_END : 2 * STAGE_BYTES;
};

// Copies rows [row0, row0 + ROWS) of a [S, D] matrix into a swizzled tile: chunk c of row r lies at
// chunk c ^ (r & 7), so that the 8 rows an ldmatrix phase reads fall into 8 different bank groups.
template <typename T, int ROWS>
__device__ __forceinline__ void load_tile(unsigned dst, const __half* src, int row0, int S) {
  constexpr int ROWS_PER_PASS = T::THREADS / T::CHUNKS > 0 ? T::THREADS / T::CHUNKS : 1;
  const int r0 = threadIdx.x / T::CHUNKS, c = threadIdx.x % T::CHUNKS;
  const __half* from = src + static_cast<long long>(row0 + r0) * T::D + c * 8;
#pragma unroll
  for (int r = 0; r < ROWS; r += ROWS_PER_PASS) {
    const int row = r + r0;
    const unsigned to = dst + row * T::ROW_BYTES + ((c ^ (row & 7)) << 4);
    cp_async16(to, from + r * T::D, row0 + row < S ? 16 : 0);
  }
}

template <typename T, bool CAUSAL, bool LAZY>
struct Forward {
  static constexpr int D = T::D, BN = T::BN, MT = T::MT;
  float o[MT][D / 8][4];
  float ref[MT][2], l[MT][2];  // rows g and g + 8 of each m16 tile, g = lane / 4
  unsigned qf[T::Q_IN_REGS ? MT : 1][T::Q_IN_REGS ? D / 16 : 1][4];
  unsigned q_addr, k_lane, v_lane, xor_q, xor_k, xor_v;
  float c;          // log2(e) * softmax scale
  int warp_row, S;  // first query row of this warp

  __device__ __forceinline__ void load_q(unsigned (&f)[4], int mt, int kk) const {
    ldmatrix_x4(f, q_addr + mt * 16 * T::ROW_BYTES + (xor_q ^ (kk << 5)));
  }

  // SCORE: s[m16 tile][n8 tile] = Q K^T for one kv tile
  __device__ __forceinline__ void score(float (&s)[MT][BN / 8][4], unsigned k_tile) const {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int n = 0; n < BN / 8; ++n) s[mt][n][0] = s[mt][n][1] = s[mt][n][2] = s[mt][n][3] = 0.f;
#pragma unroll
    for (int kk = 0; kk < D / 16; ++kk) {
      unsigned qs[MT][4];
      if constexpr (!T::Q_IN_REGS) {
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) load_q(qs[mt], mt, kk);
      }
      const unsigned addr = k_tile + k_lane + (xor_k ^ (kk << 5));
#pragma unroll
      for (int n = 0; n < BN / 16; ++n) {
        unsigned b[4];
        ldmatrix_x4(b, addr + n * 16 * T::ROW_BYTES);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          if constexpr (T::Q_IN_REGS) {
            mma_16816(s[mt][2 * n], qf[mt][kk], b[0], b[1]);
            mma_16816(s[mt][2 * n + 1], qf[mt][kk], b[2], b[3]);
          } else {
            mma_16816(s[mt][2 * n], qs[mt], b[0], b[1]);
            mma_16816(s[mt][2 * n + 1], qs[mt], b[2], b[3]);
          }
        }
      }
    }
  }

  // keys after the query (causal) and keys past the end of the sequence get weight 0
  __device__ __forceinline__ void mask(float (&s)[MT][BN / 8][4], int col0) const {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + mt * 16 + half * 8 + lane / 4;
        const int last = CAUSAL ? min(row, S - 1) : S - 1;
#pragma unroll
        for (int n = 0; n < BN / 8; ++n) {
          const int col = col0 + n * 8 + (lane & 3) * 2;
          if (col > last) s[mt][n][2 * half] = kNegInf;
          if (col + 1 > last) s[mt][n][2 * half + 1] = kNegInf;
        }
      }
  }

  // exact new maximum, rescale O and l, P in place of S, row sums of this lane in `sum`
  __device__ __forceinline__ void exact_softmax(float (&s)[MT][BN / 8][4], float (&sum)[MT][2]) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = kNegInf;
#pragma unroll
        for (int n = 0; n < BN / 8; ++n)
          top = fmaxf(top, fmaxf(s[mt][n][2 * half], s[mt][n][2 * half + 1]));
        // a row without a single valid key so far keeps ref = -1e30, and P = 0
        const float new_ref = fmaxf(ref[mt][half], quad_max(top) * c);
        const float shrink = fast_exp2(ref[mt][half] - new_ref);
        ref[mt][half] = new_ref;
        l[mt][half] *= shrink;
#pragma unroll
        for (int d = 0; d < D / 8; ++d) {
          o[mt][d][2 * half] *= shrink;
          o[mt][d][2 * half + 1] *= shrink;
        }
      }
    exponentials(s, sum);
  }

  __device__ __forceinline__ void exponentials(float (&s)[MT][BN / 8][4],
                                               float (&sum)[MT][2]) const {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      sum[mt][0] = sum[mt][1] = 0.f;
#pragma unroll
      for (int n = 0; n < BN / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[mt][n][e] = fast_exp2(fmaf(s[mt][n][e], c, -ref[mt][e >> 1]));
          sum[mt][e >> 1] += s[mt][n][e];
        }
    }
  }

  // ACCUMULATE: the C layout of S is the A layout of P, so P never leaves the registers
  __device__ __forceinline__ void accumulate(const float (&p)[MT][BN / 8][4], unsigned v_tile) {
#pragma unroll
    for (int kk = 0; kk < BN / 16; ++kk) {
      unsigned a[MT][4];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) {
        a[mt][0] = pack_half2(p[mt][2 * kk][0], p[mt][2 * kk][1]);
        a[mt][1] = pack_half2(p[mt][2 * kk][2], p[mt][2 * kk][3]);
        a[mt][2] = pack_half2(p[mt][2 * kk + 1][0], p[mt][2 * kk + 1][1]);
        a[mt][3] = pack_half2(p[mt][2 * kk + 1][2], p[mt][2 * kk + 1][3]);
      }
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        unsigned b[4];
        ldmatrix_x4_trans(b, v_tile + v_lane + kk * 16 * T::ROW_BYTES + (xor_v ^ (d << 5)));
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
          mma_16816(o[mt][2 * d], a[mt], b[0], b[1]);
          mma_16816(o[mt][2 * d + 1], a[mt], b[2], b[3]);
        }
      }
    }
  }

  template <bool MASK, bool FIRST>
  __device__ __forceinline__ void step(unsigned k_tile, int col0) {
    float s[MT][BN / 8][4], sum[MT][2];
    score(s, k_tile);
    if constexpr (MASK) mask(s, col0);
    if constexpr (FIRST || !LAZY) {
      exact_softmax(s, sum);
    } else {
      exponentials(s, sum);
      bool too_large = false;
#pragma unroll
      for (int mt = 0; mt < MT; ++mt)
        too_large |= !(sum[mt][0] <= kSumLimit) | !(sum[mt][1] <= kSumLimit);
      if (__any_sync(0xffffffffu, too_large)) {  // rare; K still lies in this stage
        score(s, k_tile);
        if constexpr (MASK) mask(s, col0);
        exact_softmax(s, sum);
      }
    }
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
      l[mt][0] += sum[mt][0];
      l[mt][1] += sum[mt][1];
    }
    accumulate(s, k_tile + T::KV_BYTES);
  }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
// four blocks at D = 64 leave 128 registers a thread: enough on sm_90, one too few on sm_80
template <int BLOCKS>
constexpr int kMinBlocks = BLOCKS < 3 ? BLOCKS : 3;
#else
template <int BLOCKS>
constexpr int kMinBlocks = BLOCKS;
#endif

template <typename T, bool CAUSAL, bool LAZY, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(T::THREADS, kMinBlocks<BLOCKS_PER_SM>)
    fa2_forward(const __half* __restrict__ q, const __half* __restrict__ k,
                const __half* __restrict__ v, __half* __restrict__ o, int S, float c) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int m_blocks = (S + T::BM - 1) / T::BM;
  const int m_block = m_blocks - 1 - static_cast<int>(blockIdx.x % m_blocks);  // longest first
  const long long head = static_cast<long long>(blockIdx.x / m_blocks) * S * T::D;
  q += head, k += head, v += head, o += head;

  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const unsigned base = smem_address(smem);
  Forward<T, CAUSAL, LAZY> f;
  f.S = S;
  f.warp_row = m_block * T::BM + warp * T::WARP_ROWS;
  // lane -> (row, chunk) of the 8x8 matrix it addresses; see the figure of ldmatrix in the PTX manual
  f.xor_q = f.xor_v = ((lane >> 4) ^ (lane & 7)) << 4;
  f.xor_k = (((lane >> 3) & 1) ^ (lane & 7)) << 4;
  f.q_addr = base + T::Q_OFFSET + (warp * T::WARP_ROWS + (lane & 15)) * T::ROW_BYTES;
  f.k_lane = ((lane & 7) + ((lane >> 4) << 3)) * T::ROW_BYTES;
  f.v_lane = (lane & 15) * T::ROW_BYTES;

  const int kv_tiles_all = (S + T::BN - 1) / T::BN;
  const int kv_tiles =
      CAUSAL ? min(kv_tiles_all, ((m_block + 1) * T::BM + T::BN - 1) / T::BN) : kv_tiles_all;
  int j = kv_tiles - 1;
  const auto load_kv = [&](int tile, int stage) {
    const unsigned dst = base + stage * T::STAGE_BYTES;
    load_tile<T, T::BN>(dst, k, tile * T::BN, S);
    load_tile<T, T::BN>(dst + T::KV_BYTES, v, tile * T::BN, S);
    cp_async_commit();
  };

  // LOAD the query tile and the first kv tile
  load_tile<T, T::BM>(base + T::Q_OFFSET, q, m_block * T::BM, S);
  load_kv(j, 0);
#pragma unroll
  for (int mt = 0; mt < T::MT; ++mt) {
    f.ref[mt][0] = f.ref[mt][1] = -1e30f;
    f.l[mt][0] = f.l[mt][1] = 0.f;
#pragma unroll
    for (int d = 0; d < T::D / 8; ++d)
      f.o[mt][d][0] = f.o[mt][d][1] = f.o[mt][d][2] = f.o[mt][d][3] = 0.f;
  }
  f.c = c;
  cp_async_wait_all();
  __syncthreads();
  if constexpr (T::Q_IN_REGS) {
#pragma unroll
    for (int mt = 0; mt < T::MT; ++mt)
#pragma unroll
      for (int kk = 0; kk < T::D / 16; ++kk) f.load_q(f.qf[mt][kk], mt, kk);
    __syncthreads();  // stage 1 may now be overwritten
  }

  int stage = 0;
  if (j > 0) load_kv(j - 1, 1);
  f.template step<true, true>(base, j * T::BN);  // the tile on the diagonal, or the last one
  // with more query rows than keys in a tile the diagonal crosses further tiles
  constexpr int MORE_MASKED = CAUSAL ? (T::BM + T::BN - 1) / T::BN - 1 : 0;
#pragma unroll
  for (int i = 0; i < MORE_MASKED; ++i) {
    if (--j < 0) break;
    stage ^= 1;
    cp_async_wait_all();
    __syncthreads();
    if (j > 0) load_kv(j - 1, stage ^ 1);
    f.template step<true, false>(base + stage * T::STAGE_BYTES, j * T::BN);
  }
#pragma unroll 1
  for (--j; j >= 0; --j) {
    stage ^= 1;
    cp_async_wait_all();
    __syncthreads();
    if (j > 0) load_kv(j - 1, stage ^ 1);
    f.template step<false, false>(base + stage * T::STAGE_BYTES, j * T::BN);
  }

  // STORE: O / l as fp16 through shared memory, then whole 16-byte chunks
  __syncthreads();
  unsigned char* tile = smem + warp * T::WARP_ROWS * T::ROW_BYTES;
#pragma unroll
  for (int mt = 0; mt < T::MT; ++mt)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse = 1.0f / quad_sum(f.l[mt][half]);
      const int row = mt * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int d = 0; d < T::D / 8; ++d)
        *reinterpret_cast<unsigned*>(tile + row * T::ROW_BYTES + ((d ^ (row & 7)) << 4) +
                                     (lane & 3) * 4) =
            pack_half2(f.o[mt][d][2 * half] * inverse, f.o[mt][d][2 * half + 1] * inverse);
    }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < T::WARP_ROWS * T::CHUNKS; i += 32) {
    const int row = i / T::CHUNKS, chunk = i % T::CHUNKS;
    if (f.warp_row + row < S)
      *reinterpret_cast<uint4*>(o + static_cast<long long>(f.warp_row + row) * T::D + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + row * T::ROW_BYTES + ((chunk ^ (row & 7)) << 4));
  }
}

template <typename T, bool LAZY, int BLOCKS_PER_SM>
cudaError_t launch(const __half* q, const __half* k, const __half* v, __half* o, int heads, int S,
                   bool causal, float c, cudaStream_t stream) {
  const auto kernel = causal ? fa2_forward<T, true, LAZY, BLOCKS_PER_SM>
                             : fa2_forward<T, false, LAZY, BLOCKS_PER_SM>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::SMEM_BYTES);
  if (error != cudaSuccess) return error;
  const unsigned m_blocks = (S + T::BM - 1) / T::BM;
  kernel<<<m_blocks * heads, T::THREADS, T::SMEM_BYTES, stream>>>(q, k, v, o, S, c);
  return cudaGetLastError();
}

}  // namespace

// Softmax scale > 0 (the binding folds a sign into q). Returns a cudaError_t. `variant` 0 is the kernel
// that runs; the others are compiled only with -DFA2_VARIANTS, for the ladder in NOTES.md.
extern "C" int fa2_tile64_fp16(const void* q, const void* k, const void* v, void* o, int heads,
                               int S, int D, int causal, float scale, int variant,
                               cudaStream_t stream) {
  const auto run = [&](auto launcher) {
    return static_cast<int>(launcher(static_cast<const __half*>(q), static_cast<const __half*>(k),
                                     static_cast<const __half*>(v), static_cast<__half*>(o), heads,
                                     S, causal != 0, scale * 1.4426950408889634f, stream));
  };
  switch (D * 10 + variant) {
    case 640: return run(launch<Tile<64, 64, 64, 16>, true, 4>);
    case 1280: return run(launch<Tile<128, 64, 64, 16>, true, 3>);
    case 2560: return run(launch<Tile<256, 128, 64, 16>, true, 1>);  // 64 rows: too little reuse
#ifdef FA2_VARIANTS
    case 641: return run(launch<Tile<64, 64, 64, 16>, false, 3>);
    case 642: return run(launch<Tile<64, 64, 64, 32>, true, 4>);
    case 643: return run(launch<Tile<64, 128, 64, 32>, true, 2>);
    case 644: return run(launch<Tile<64, 64, 64, 16>, true, 3>);
    case 645: return run(launch<Tile<64, 128, 64, 16>, true, 2>);
    case 1281: return run(launch<Tile<128, 64, 64, 16>, false, 2>);
    case 1283: return run(launch<Tile<128, 128, 64, 16>, true, 1>);
    case 1284: return run(launch<Tile<128, 64, 64, 16>, true, 2>);
    case 1285: return run(launch<Tile<128, 64, 32, 16>, true, 3>);
    case 2561: return run(launch<Tile<256, 64, 32, 16>, true, 2>);
    case 2562: return run(launch<Tile<256, 64, 64, 16>, true, 1>);
#endif
  }
  return static_cast<int>(cudaErrorInvalidValue);
}
