// Rung 1, wgmma: one warpgroup owns 64 query rows; the tensor cores read Q, K and V where they lie in shared memory.
//
// Shapes   q, k, v, o  [B, H, S, D] contiguous fp16, D = 64, 128 or 256; q_smem, k_smem, v_smem [64, D], 128-byte
//          swizzle
//
//              kv tiles, j = 0 ... →                    a block owns one row of this picture
//            ┌────┬────┬────┬────┐
//   q tile i │ S0 │ S1 │ S2 │ // │ → o tile i           S = Q K^T   wgmma m64n64k16, both operands in shared memory
//            └────┴────┴────┴────┘                      O += P V    wgmma m64nDk16, P from registers
//
// Phases   LOAD  SCORE  SOFTMAX  ACCUMULATE  STORE, one after another: nothing overlaps inside a block
// Bound    latency: the tensor cores wait for loads and for the softmax
// Limits   sm_90a only; any S, any scale
// Run      python run.py --submission cuda_hopper/steps/01_wgmma.cu
#include "rows.cuh"

constexpr int N = 64;   // kv rows per tile

// rows [row0, row0 + 64) of a [S, D] matrix into panels of 64 columns: 16-byte chunk c of row r goes to chunk c ^ (r %
// 8)
template <int D> __device__ __forceinline__ void load_tile(uint32_t smem, const uint16_t* head, int row0, int S) {
#pragma unroll 4
  for (int i = threadIdx.x; i < 64 * D / 8; i += 128) {
    const int row = i / (D / 8), chunk = i % (D / 8);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (row0 + row < S) x = *reinterpret_cast<const uint4*>(head + (uint64_t)(row0 + row) * D + chunk * 8);
    const uint32_t at = smem + (chunk >> 3) * 8192 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
    asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
  }
}

template <int D, bool CAUSAL>
__global__ void __launch_bounds__(128, 1)
    step(const uint16_t* q, const uint16_t* k, const uint16_t* v, uint16_t* o, int S, float scale) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t q_smem = smem_u32(smem), k_smem = q_smem + 64 * D * 2, v_smem = k_smem + N * D * 2;
  // longest first
  const int blocks = (S + 63) / 64, first_row = (blocks - 1 - (int)blockIdx.x % blocks) * 64, lane = threadIdx.x & 31;
  const uint64_t head = (uint64_t)(blockIdx.x / blocks) * S * D;
  const int row = first_row + (threadIdx.x >> 5) * 16 + (lane >> 2), end = CAUSAL ? min(first_row + 64, S) : S;
  const Limits limits = row_limits<CAUSAL>(row, S, lane);
  Rows rows = {{-1e30f, -1e30f}, {0.f, 0.f}};
  float s[N / 2], acc[D / 2]; uint32_t p[N / 4];
#pragma unroll
  for (int i = 0; i < D / 2; i++) acc[i] = 0.f;
  load_tile<D>(q_smem, q + head, first_row, S);

#pragma unroll 1
  for (int key = 0; key < end; key += N) {
    // LOAD; the fence makes what threads wrote visible to the tensor cores' own path into shared memory
    load_tile<D>(k_smem, k + head, key, S); load_tile<D>(v_smem, v + head, key, S);
    proxy_fence(); __syncthreads();
    // SCORE
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
      QK<N>::mma(s, desc_low(q_smem, 16) + (i & 3) * 2 + (i >> 2) * 512,
                 desc_low(k_smem, 16) + (i & 3) * 2 + (i >> 2) * 512, i != 0);
    wgmma_commit(); wgmma_wait<0>(); touch(s);
    // SOFTMAX
    float shrink[2];
    softmax_tile(s, rows, scale, limits, key, shrink);
    scale_o(acc, shrink);
    pack_p(p, s);
    touch(p);
    touch(acc);
    // ACCUMULATE
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < N / 16; i++) PV<D>::mma(acc, p + 4 * i, desc_low(v_smem, N * 128) + i * 128);
    wgmma_commit(); wgmma_wait<0>(); touch(acc);
    __syncthreads();   // everybody has read k_smem and v_smem
  }
  store_rows(o + head, acc, rows, row, S, lane);   // STORE
}
