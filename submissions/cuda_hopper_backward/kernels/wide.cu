// Attention backward on Hopper (sm_90a) for headdim 256: one kernel for dk and dv, one for dq; seven products, nothing else computed twice.
//
// Roles    dkdv: one warpgroup makes P^T and sums dv, the other makes dS^T and sums dk; P^T goes from one to the other in 32 bits through shared memory,
//          each thread's registers to the same thread of the other. dq: 128 query rows a block, so that one warpgroup's dS is made under the
//          other's products. Both: a producer warp, and the product that uses P or dS of a tile is issued with the
//          scores of the next one. dP is summed on minus delta. A warp that issues a product waits until the tensor
//          cores have some 200 clocks left to do, so P is made between the steps of a product
//
// Shapes   q, k, v, do [B, H, S, D] 16-bit floats, dq, dk, dv contiguous, with GENERAL of any strides; TMA boxes of 64 rows x 64 columns, 128-byte swizzle
//          stats [B * H, T, 2, 64] float32 of passes.cu: log2(e) * lse and minus delta of each tile of 64 query rows
//          dkdv: k_smem, v_smem [64, D]   q_smem, do_smem [2][64, D]   p_smem [2][64 x 64 floats]   lse, delta [2][64]
//          dq:   q_smem, do_smem [128, D]   k_smem [2][64, D]   v_smem [64, D]
//
//                  query tiles of 64, i →                          dkdv          warpgroup 1             warpgroup 2
//               ┌────┬────┬────┬────┐                              trip i        S^T(i) = K Q^T(i)       dK += dS^T(i-1) Q(i-1)
//   kv tile j   │diag│ P  │ P  │ P  │ → dk j, dv j  (dkdv)                       dV += P^T(i-1) dO(i-1)  dP^T(i) = V dO^T(i)
//               ├────┼────┼────┼────┤                                            P^T(i)  ──────────────→ dS^T(i)
//               │ // │diag│ P  │ P  │                              dq            both, 64 of the block's 128 query rows each
//               └────┴─↓──┴────┴────┘                              trip j        dQ += dS(j-1) K(j-1), S(j), dP(j), then P(j) and dS(j)
//                     dq i           (dq)
//
// Phases   PRODUCER: LOAD   CONSUMERS: FIRST, TRIP: ISSUE, P, DS   LAST   STORE
// Bound    14 B H S^2 D / 2 flops (causal; 10 are counted) at 4096 per clock and SM, and shared memory close behind it: NOTES.md
// Measured one H200, hdim256_seq16k, TFLOP/s in turns of one process: 510, FlashAttention-3 429, the text before 471: NOTES.md
// Limits   sm_90a, D = 256; any S and scale. Other lengths of k, fewer heads of k and v, uneven heads: GENERAL=1
// Check    python benchmarks/backward_kernel.py --rungs wide
// build: -DHEADDIM=256
// promise: registers=168 spills=0 warnings=0
// build: -DHEADDIM=256 -DGENERAL=1 -DBF16=1
#include "rows.cuh"

#ifndef HEADDIM
#define HEADDIM 256
#endif
constexpr int D = HEADDIM, PANELS = D / 64;
constexpr int THREADS = 384, CONSUMER_WARPS = 8;               // warpgroup 0 loads
constexpr uint32_t TILE = 64 * D * 2, PANEL = 8192, P_BYTES = 64 * 64 * 4, STAT_BYTES = 64 * 4;

// rows [row, row + 64) of a tensor, by the lane whose `on` is set
__device__ __forceinline__ void load_tile(uint32_t dst, const TensorMap* map, int row, Head head, uint32_t bar, int on) {
#pragma unroll
  for (int c = 0; c < PANELS; c++) load_box(dst + c * PANEL, map, c * 64, row, head, bar, on);
}
__device__ __forceinline__ Head q_head(int head, const Keys& keys) { return GENERAL ? Head{head % keys.nheads, head / keys.nheads} : Head{head, 0}; }
__device__ __forceinline__ Head kv_head(int head, const Keys& keys) { return GENERAL ? Head{head % keys.nheads / keys.group, head / keys.nheads} : Head{head, 0}; }
// s = A B^T over D columns, both [64, D] in shared memory, or some of its steps of 16 columns; `sums_on`: s += A B^T
__device__ __forceinline__ void issue_score(
    float (&s)[32], uint32_t a, uint32_t b, bool sums_on = false, int from = 0, int to = D / 16) {
#pragma unroll
  for (int i = from; i < to; i++) {
    const int at = (i & 3) * 2 + (i >> 2) * 512;
    MmaSS<64, 0, 0>::mma(s, desc_low(a, 16) + at, desc_low(b, 16) + at, sums_on || i != 0);
  }
  wgmma_commit();
}
// acc += X B, X [64, 64] in registers, B [64, D] in shared memory, or some of its steps of 16 rows
__device__ __forceinline__ void issue_accumulate(
    float (&acc)[D / 2], const uint32_t (&x)[16], uint32_t b, int from = 0, int to = 4) {
#pragma unroll
  for (int i = from; i < to; i++) MmaRS<D, 1>::mma(acc, x + 4 * i, desc_low(b, PANEL) + i * 128, 1);
  wgmma_commit();
}
__device__ __forceinline__ void arrive(uint32_t bar, int lane0) { __syncwarp(); mbar_arrive_if(bar, lane0); }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dkdv(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
     const __grid_constant__ TensorMap do_map, const float* stats, uint16_t* dk, uint16_t* dv, int S, int causal, float scale, float scale_log2, Keys keys,
     Strides dk_at, Strides dv_at) {
  SHARED_MEMORY(smem);
  const uint32_t k_smem = smem_u32(smem), v_smem = k_smem + TILE, q_smem = v_smem + TILE, do_smem = q_smem + 2 * TILE, p_smem = do_smem + 2 * TILE;
  const uint32_t lse_smem = p_smem + 2 * P_BYTES, delta_smem = lse_smem + 2 * STAT_BYTES, bars = delta_smem + 2 * STAT_BYTES;
  const uint32_t k_full = bars, v_full = bars + 8, q_full = bars + 16, do_full = bars + 32, p_full = bars + 48;   // the last three: two slots each
  const uint32_t q_empty = bars + 64, do_empty = bars + 80;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 6; i++) mbar_init(bars + 8 * i, 1);
    for (int i = 0; i < 2; i++) {
      mbar_init(q_empty + 8 * i, CONSUMER_WARPS); mbar_init(do_empty + 8 * i, CONSUMER_WARPS);
      mbar_init(p_full + 8 * i, 4);                                  // and no empty: q(i) came into the slot of q(i - 2), so P(i - 2) was taken
    }
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();
  const int S_k = GENERAL ? keys.seqlen : S, later = GENERAL ? S_k - S : 0;   // row i sees the keys up to i + later, if causal
  const int tiles = (S + 63) / 64, kv_tiles = (S_k + 63) / 64, head = blockIdx.x / kv_tiles, kv_tile = blockIdx.x - head * kv_tiles;   // longest first if causal
  const int first = causal ? (GENERAL ? max(kv_tile * 64 - later, 0) / 64 : kv_tile) : 0, trips = tiles - first;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), wg = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  const float* stat = stats + ((uint64_t)head * tiles + first) * 128;

  if (wg == 0) {                                                   // PRODUCER: warp 0 loads k, q, lse; warp 1 v, do, delta
    regs_down<24>();
    if (warp < 2) {
      const TensorMap* map = warp ? &do_map : &q_map;
      const uint32_t full = warp ? do_full : q_full, empty = warp ? do_empty : q_empty, tile_smem = warp ? do_smem : q_smem;
      const uint32_t stat_smem = warp ? delta_smem : lse_smem, fixed_full = warp ? v_full : k_full;
      const Head at = q_head(head, keys);
      mbar_expect_if(fixed_full, TILE, lane0);
      load_tile(warp ? v_smem : k_smem, warp ? &v_map : &k_map, kv_tile * 64, kv_head(head, keys), fixed_full, lane0);
#pragma unroll 1
      for (int i = 0; i < trips; i++) {
        const int slot = i & 1;
        mbar_wait(empty + 8 * slot, (i >> 1 & 1) ^ 1);
        mbar_expect_if(full + 8 * slot, TILE + STAT_BYTES, lane0);
        load_tile(tile_smem + slot * TILE, map, (first + i) * 64, at, full + 8 * slot, lane0);
        bulk_load_if(stat_smem + slot * STAT_BYTES, stat + i * 128 + warp * 64, STAT_BYTES, full + 8 * slot, lane0);
      }
    }
    return;
  }
  regs_up<240>();
  const int kv0 = kv_tile * 64, row = kv0 + warp * 16 + (lane >> 2);   // this thread's kv rows: row and row + 8
  const uint32_t p_mine = p_smem + (threadIdx.x & 127) * 16;           // this thread's P, in eight pieces 2 KB apart
  const uint64_t dense = ((uint64_t)head * S_k + row) * D;
  float acc[D / 2], s[32]; uint32_t x[16];                             // dv or dk; S^T or dP^T; P^T or dS^T
  zero(acc);
  auto store = [&](uint16_t* to, const Strides& at, float by) {
    const uint64_t out = GENERAL ? place_of(at, head, keys.nheads, row) : dense;
    store_rows(to + out, GENERAL ? (int)at.row : D, acc, by, row, S_k, lane);
  };
  if (wg == 1) {
    uint32_t p[16];
    float2 lse[8];                                                     // of this lane's query columns
    auto load_lse = [&](int i) {
#pragma unroll
      for (int j = 0; j < 8; j++) lse[j] = lds_float2(lse_smem + (i & 1) * STAT_BYTES + (8 * j + pair) * 4);
    };
    // P^T = 2^(S^T * scale - lse), of eights of query columns
    auto exp_p = [&](int from, int to) {
#pragma unroll
      for (int j = from; j < to; j++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
          s[4 * j + r] = exp2_approx(fmaf(s[4 * j + r], scale_log2, (r & 1) ? -lse[j].y : -lse[j].x));
      }
    };
    // 0 above the diagonal and past the last key; for this warpgroup and for the other
    auto give_p = [&](int i) {
      const int slot = i & 1;
      if ((causal && (GENERAL ? (first + i) * 64 < kv0 + 63 - later : i == 0)) || kv0 + 64 > S_k) {   // the first tile of a causal kv tile is its diagonal
        const int at = (first + i) * 64 + pair + later;
        const int from0 = row >= S_k ? 1 << 30 : causal ? row - at : -1;           // first query column that sees the row,
        const int from1 = row + 8 >= S_k ? 1 << 30 : causal ? row + 8 - at : -1;   // less this lane's column
#pragma unroll
        for (int r = 0; r < 32; r++) s[r] = r / 4 * 8 + (r & 1) < ((r & 2) ? from1 : from0) ? 0.f : s[r];
      }
#pragma unroll
      for (int j = 0; j < 8; j++) sts_float4(p_mine + slot * P_BYTES + j * 2048, s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
      arrive(p_full + 8 * slot, lane0);
      pack_rows(p, s);
    };
    const uint32_t none = S >> 31;
    auto step_p = [&] {                                                // dV has read the P before. The sum with nothing keeps ptxas from making x
#pragma unroll
      for (int r = 0; r < 16; r++) x[r] = p[r] + none;                 // and p one set of registers, which would serialise every wgmma (C7513)
      touch(x);
    };
    // FIRST
    mbar_wait(k_full, 0); mbar_wait(q_full, 0);
    wgmma_fence(); issue_score(s, k_smem, q_smem); load_lse(0); wgmma_wait<0>(); touch(s);
    arrive(q_empty, lane0); exp_p(0, 8); give_p(0); step_p();
#pragma unroll 1
    for (int i = 1; i < trips; i++) {
      const int slot = i & 1, before = slot ^ 1;
      // ISSUE
      mbar_wait(q_full + 8 * slot, i >> 1 & 1);
      wgmma_fence(); issue_score(s, k_smem, q_smem + slot * TILE);
      mbar_wait(do_full + 8 * before, (i - 1) >> 1 & 1);
      wgmma_fence(); issue_accumulate(acc, x, do_smem + before * TILE, 0, 1);
      load_lse(i);
      // P between the rest of dV
      wgmma_wait<1>(); touch(s); arrive(q_empty + 8 * slot, lane0);
      wgmma_fence(); exp_p(0, 4); issue_accumulate(acc, x, do_smem + before * TILE, 1, 4); exp_p(4, 8);
      give_p(i);
      wgmma_wait<0>(); touch(acc); touch(x); arrive(do_empty + 8 * before, lane0); step_p();
    }
    // LAST
    mbar_wait(do_full + 8 * ((trips - 1) & 1), (trips - 1) >> 1 & 1);
    wgmma_fence(); issue_accumulate(acc, x, do_smem + ((trips - 1) & 1) * TILE); wgmma_wait<0>(); touch(acc);
    store(dv, dv_at, 1.f);                                             // STORE
    return;
  }
  float4 p[8];
  auto take_p = [&](int i) {
    mbar_wait(p_full + 8 * (i & 1), i >> 1 & 1);
#pragma unroll
    for (int j = 0; j < 8; j++) p[j] = lds_float4(p_mine + (i & 1) * P_BYTES + j * 2048);
  };
  // dS^T = P^T (dP^T - delta)
  auto make_ds = [&](int i) {
    const int slot = i & 1;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      x[2 * j] = pack_half2(p[j].x * s[4 * j], p[j].y * s[4 * j + 1]);
      x[2 * j + 1] = pack_half2(p[j].z * s[4 * j + 2], p[j].w * s[4 * j + 3]);
    }
    arrive(do_empty + 8 * slot, lane0);
    touch(x);
  };
  // dP^T - delta
  auto issue_dp = [&](int slot) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta_smem + slot * STAT_BYTES + (8 * j + pair) * 4);
      s[4 * j] = s[4 * j + 2] = d.x; s[4 * j + 1] = s[4 * j + 3] = d.y;
    }
    touch(s); wgmma_fence(); issue_score(s, v_smem, do_smem + slot * TILE, true);
  };
  // FIRST
  mbar_wait(v_full, 0); mbar_wait(do_full, 0);
  issue_dp(0); take_p(0); wgmma_wait<0>(); touch(s);
  make_ds(0); mbar_wait(q_full, 0);
#pragma unroll 1
  for (int i = 1; i < trips; i++) {
    const int slot = i & 1, before = slot ^ 1;
    // ISSUE
    wgmma_fence(); issue_accumulate(acc, x, q_smem + before * TILE);
    mbar_wait(do_full + 8 * slot, i >> 1 & 1);
    issue_dp(slot);
    wgmma_wait<1>(); touch(acc); touch(x); arrive(q_empty + 8 * before, lane0);
    // DS
    take_p(i); wgmma_wait<0>(); touch(s); make_ds(i);
    mbar_wait(q_full + 8 * slot, i >> 1 & 1);                          // for the next trip's product: P came of it, so it is here
  }
  // LAST
  wgmma_fence(); issue_accumulate(acc, x, q_smem + ((trips - 1) & 1) * TILE); wgmma_wait<0>(); touch(acc);
  store(dk, dk_at, scale);                                             // STORE
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dq(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
   const __grid_constant__ TensorMap do_map, const float* stats, uint16_t* dq, int S, int causal, float scale, float scale_log2, Keys keys, Strides dq_at) {
  SHARED_MEMORY(smem);
  const uint32_t q_smem = smem_u32(smem), do_smem = q_smem + 2 * TILE, k_smem = do_smem + 2 * TILE, v_smem = k_smem + 2 * TILE, bars = v_smem + TILE;
  const uint32_t q_full = bars, do_full = bars + 16, k_full = bars + 32, k_empty = bars + 48, v_full = bars + 64, v_empty = bars + 72;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 6; i++) mbar_init(bars + 8 * i, 1);
    for (int i = 0; i < 2; i++) mbar_init(k_empty + 8 * i, CONSUMER_WARPS);
    mbar_init(v_full, 1); mbar_init(v_empty, CONSUMER_WARPS);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();
  const int tiles = (S + 63) / 64, blocks = (S + 127) / 128, head = blockIdx.x / blocks, block = blocks - 1 - (blockIdx.x - head * blocks);   // longest first
  const int S_k = GENERAL ? keys.seqlen : S, later = GENERAL ? S_k - S : 0, kv_tiles = (S_k + 63) / 64;
  const int trips = causal ? min(GENERAL ? (block * 128 + 127 + later) / 64 + 1 : 2 * block + 2, kv_tiles) : kv_tiles;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, lane0 = lane == 0;

  if (warps < 4) {                                                 // PRODUCER: one warp; the second warpgroup's rows come last, so it starts later
    regs_down<24>();
    if (warps == 0) {
      const Head at = q_head(head, keys), kv_at = kv_head(head, keys);
      auto fixed = [&](int w) {
        mbar_expect_if(q_full + 8 * w, TILE, lane0); load_tile(q_smem + w * TILE, &q_map, block * 128 + 64 * w, at, q_full + 8 * w, lane0);
        mbar_expect_if(do_full + 8 * w, TILE, lane0); load_tile(do_smem + w * TILE, &do_map, block * 128 + 64 * w, at, do_full + 8 * w, lane0);
      };
      fixed(0);
#pragma unroll 1
      for (int i = 0; i < trips; i++) {
        const int slot = i & 1;
        mbar_wait(k_empty + 8 * slot, (i >> 1 & 1) ^ 1);
        mbar_expect_if(k_full + 8 * slot, TILE, lane0); load_tile(k_smem + slot * TILE, &k_map, i * 64, kv_at, k_full + 8 * slot, lane0);
        mbar_wait(v_empty, (i & 1) ^ 1);
        mbar_expect_if(v_full, TILE, lane0); load_tile(v_smem, &v_map, i * 64, kv_at, v_full, lane0);
        if (i == 0) fixed(1);
      }
    }
    return;
  }
  regs_up<240>();
  const int w = (warps >> 2) - 1, in_tile = (warps & 3) * 16 + (lane >> 2), row0 = block * 128 + 64 * w, row = row0 + in_tile;   // rows: row and row + 8
  const float* stat = stats + ((uint64_t)head * tiles + min(row0 / 64, tiles - 1)) * 128 + in_tile;   // an odd last tile has no second warpgroup: nothing is stored
  const float lse[2] = {stat[0], stat[8]}, minus_delta[2] = {stat[64], stat[72]};
  const uint32_t q_mine = q_smem + w * TILE, do_mine = do_smem + w * TILE;
  float s[32], dp[32], acc[D / 2]; uint32_t ds[16];
  zero(acc);
  auto exp_p = [&](int from, int to) {                             // P = 2^(S * scale - lse)
#pragma unroll
    for (int r = from; r < to; r++) s[r] = exp2_approx(fmaf(s[r], scale_log2, -lse[r >> 1 & 1]));
  };
  auto mask_p = [&](int i) {                                       // 0 above the diagonal and past the last key
    if ((causal && i * 64 + 63 > row0 + later) || i * 64 + 64 > S_k) {
      const int at = i * 64 + 2 * (lane & 3);
      const int last0 = (causal ? min(row + later, S_k - 1) : S_k - 1) - at, last1 = (causal ? min(row + 8 + later, S_k - 1) : S_k - 1) - at;   // last key that each row sees
#pragma unroll
      for (int r = 0; r < 32; r++) s[r] = r / 4 * 8 + (r & 1) > ((r & 2) ? last1 : last0) ? 0.f : s[r];
    }
  };
  auto make_ds = [&] {                                             // dS = P (dP - delta)
#pragma unroll
    for (int r = 0; r < 32; r++) dp[r] *= s[r];
    pack_rows(ds, dp); touch(ds);
  };
  auto start_dp = [&] {                                            // what dP is summed on
#pragma unroll
    for (int r = 0; r < 32; r++) dp[r] = minus_delta[r >> 1 & 1];
    touch(dp);
  };
  // FIRST
  mbar_wait(q_full + 8 * w, 0); mbar_wait(k_full, 0);
  wgmma_fence(); issue_score(s, q_mine, k_smem);
  start_dp(); mbar_wait(do_full + 8 * w, 0); mbar_wait(v_full, 0);
  wgmma_fence(); issue_score(dp, do_mine, v_smem, true);
  wgmma_wait<1>(); touch(s); exp_p(0, 32); mask_p(0);
  wgmma_wait<0>(); touch(dp); arrive(v_empty, lane0); make_ds();
#pragma unroll 1
  for (int i = 1; i < trips; i++) {
    const int slot = i & 1, before = slot ^ 1;
    // ISSUE
    wgmma_fence(); issue_accumulate(acc, ds, k_smem + before * TILE);
    mbar_wait(k_full + 8 * slot, i >> 1 & 1);
    wgmma_fence(); issue_score(s, q_mine, k_smem + slot * TILE);
    start_dp(); mbar_wait(v_full, i & 1);
    wgmma_fence(); issue_score(dp, do_mine, v_smem, true, 0, D / 32);
    wgmma_wait<2>(); touch(acc); touch(ds); arrive(k_empty + 8 * before, lane0);
    // P between the rest of dP
    wgmma_wait<1>(); touch(s);
    wgmma_fence(); exp_p(0, 16); issue_score(dp, do_mine, v_smem, true, D / 32, D / 16); exp_p(16, 32);
    mask_p(i);
    // DS
    wgmma_wait<0>(); touch(dp); arrive(v_empty, lane0); make_ds();
  }
  // LAST
  wgmma_fence(); issue_accumulate(acc, ds, k_smem + ((trips - 1) & 1) * TILE); wgmma_wait<0>(); touch(acc);
  const uint64_t out = GENERAL ? place_of(dq_at, head, keys.nheads, row) : ((uint64_t)head * S + row) * D;
  store_rows(dq + out, GENERAL ? (int)dq_at.row : D, acc, scale, row, S, lane);   // STORE
}
