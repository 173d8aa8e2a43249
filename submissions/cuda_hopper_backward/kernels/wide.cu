// Attention backward on Hopper (sm_90a) for headdim 256: one kernel for dk, dv and dS, one for dq = dS K. Five
// products, nothing computed twice, no sums in memory: dS, in 16 bits as dK takes it, is written and read once.
//
// Roles    dkdv: one warpgroup makes P^T and sums dv, the other makes dS^T and sums dk; P^T goes from one to the other
//          in 32 bits through shared memory, each thread's registers to the same thread of the other. A producer warp;
//          the product that uses P or dS of a tile is issued with the scores of the next one. dP is summed on minus
//          delta. A warp that issues a product waits until the tensor cores have some 200 clocks left to do, so P is
//          made and dS is stored between its steps. Some columns of k and v stay in registers: less to read. dq: 128
//          query rows a block, 64 a warpgroup, and a producer warp
//
// Shapes   q, k, v, do [B, H, S, D] 16-bit floats, dq, dk, dv contiguous, with GENERAL of any strides; TMA boxes of 64
//          rows x 64 columns, 128-byte swizzle. stats [B * H, T, 2, 64] float32 of passes.cu: log2(e) * lse and minus
//          delta of each tile of 64 query rows. ds: tiles of [64 kv rows, 64 query rows] of a part, where ds_place
//          says. sums [T, 32, 128, 4] float32
//          dkdv: k_smem, v_smem [64, D]   q_smem, do_smem [2][64, D]   p_smem [2][64 x 64 floats]   lse, delta [2][64]
//          dq:   [4] of k_smem [64, D], ds_smem [2][64, 64]
//
//                  query tiles of 64, i →              dkdv     warpgroup 1             warpgroup 2
//               ┌────┬────┬────┬────┐                  trip i   S^T(i) = K Q^T(i)       dK += dS^T(i-1) Q(i-1)
//   kv tile j   │diag│ P  │ P  │ P  │ → dk j, dv j              dV += P^T(i-1) dO(i-1)  dP^T(i) = V dO^T(i)
//               ├────┼────┼────┼────┤                           P^T(i)  ──────────────→ dS^T(i) → ds
//               │ // │diag│ P  │ P  │                  dq       both, 64 of the block's 128 query rows each
//               └────┴─↓──┴────┴────┘                  trip j   dQ += dS(j) K(j)
//                     dq i
//
// Parts    ds holds what the launcher allows: of some heads all kv tiles, or some of one head, whose dq is then summed
//          in `sums` from part to part
// Phases   PRODUCER: LOAD   CONSUMERS: FIRST, TRIP: ISSUE, P, DS   LAST   STORE
// Bound    10 B H S^2 D / 2 flops (causal) at 4096 per clock and SM, and the clock that 700 W allow: NOTES.md
// Measured one H200, hdim256_seq16k, beside what made dS twice, in turns of one process: NOTES.md
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
constexpr int KEPT_K = 8, KEPT_V = 4;                          // dkdv: steps of 16 columns of k and v in registers
constexpr int STAGES = 4;                                      // dq: slots of k and dS
constexpr uint32_t TILE = 64 * D * 2, PANEL = 8192, P_BYTES = 64 * 64 * 4, DS_BYTES = 64 * 64 * 2, STAT_BYTES = 64 * 4;
constexpr uint32_t STAGE_BYTES = TILE + 2 * DS_BYTES;

// What a launch is about: heads from `head` on, as many as its grid has, and of each these tiles of 64 kv rows
struct Part { int head, kv_tile, kv_tiles; };
// Tiles of a head's dS before those of a kv tile: of what is seen, or where GENERAL of all
__device__ __forceinline__ int ds_before(int kv_tile, int tiles, int causal) {
  return kv_tile * tiles - (!GENERAL && causal ? kv_tile * (kv_tile - 1) / 2 : 0);
}
// Tiles of dS in memory before that of a kv and a query tile of a part's head `in_part`
__device__ __forceinline__ uint64_t ds_place(
    const Part& part, int in_part, int kv_tile, int tile, int tiles, int causal) {
  const int before = ds_before(part.kv_tile, tiles, causal);
  const int of_head = ds_before(part.kv_tile + part.kv_tiles, tiles, causal) - before;
  const int skipped = !GENERAL && causal ? kv_tile : 0;          // query tiles that do not see it
  return (uint64_t)in_part * of_head + ds_before(kv_tile, tiles, causal) - before + tile - skipped;
}

// rows [row, row + 64) of a tensor, by the lane whose `on` is set
__device__ __forceinline__ void load_tile(
    uint32_t dst, const TensorMap* map, int row, Head head, uint32_t bar, int on) {
#pragma unroll
  for (int c = 0; c < PANELS; c++) load_box(dst + c * PANEL, map, c * 64, row, head, bar, on);
}
__device__ __forceinline__ Head q_head(int head, const Keys& keys) {
  return GENERAL ? Head{head % keys.nheads, head / keys.nheads} : Head{head, 0};
}
__device__ __forceinline__ Head kv_head(int head, const Keys& keys) {
  return GENERAL ? Head{head % keys.nheads / keys.group, head / keys.nheads} : Head{head, 0};
}
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
// The same, the first steps' columns of A from registers: half of what such a product reads of shared memory is A
template <int KEPT>
__device__ __forceinline__ void issue_score(
    float (&s)[32], const uint32_t (&kept)[KEPT][4], uint32_t a, uint32_t b, bool sums_on = false) {
#pragma unroll
  for (int i = 0; i < KEPT; i++)
    MmaRS<64, 0>::mma(s, kept[i], desc_low(b, 16) + (i & 3) * 2 + (i >> 2) * 512, sums_on || i != 0);
  issue_score(s, a, b, true, KEPT);
}
// kept <- a warp's 16 rows of A
template <int KEPT> __device__ __forceinline__ void keep(uint32_t (&kept)[KEPT][4], uint32_t a, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < KEPT; i++) {
    load_matrices(kept[i], swizzled(a + (i >> 2) * PANEL, warp * 16 + (lane & 15), (i & 3) * 2 + (lane >> 4)));
    touch(kept[i]);
  }
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
dkdv(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
     const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map, const float* stats,
     uint16_t* dk, uint16_t* dv, int S, int causal, float scale, float scale_log2, Keys keys, Strides dk_at,
     Strides dv_at, uint16_t* ds, Part part) {
  SHARED_MEMORY(smem);
  const uint32_t k_smem = smem_u32(smem), v_smem = k_smem + TILE, q_smem = v_smem + TILE, do_smem = q_smem + 2 * TILE;
  const uint32_t p_smem = do_smem + 2 * TILE, lse_smem = p_smem + 2 * P_BYTES, delta_smem = lse_smem + 2 * STAT_BYTES;
  const uint32_t bars = delta_smem + 2 * STAT_BYTES, k_full = bars, v_full = bars + 8;
  const uint32_t q_full = bars + 16, do_full = bars + 32, p_full = bars + 48;      // two slots each
  const uint32_t q_empty = bars + 64, do_empty = bars + 80;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 6; i++) mbar_init(bars + 8 * i, 1);
    for (int i = 0; i < 2; i++) {
      mbar_init(q_empty + 8 * i, CONSUMER_WARPS); mbar_init(do_empty + 8 * i, CONSUMER_WARPS);
      mbar_init(p_full + 8 * i, 4);                // and no empty: q(i) has the slot of q(i - 2), so P(i - 2) was taken
    }
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();
  // row i sees the keys up to i + later, if causal
  const int S_k = GENERAL ? keys.seqlen : S, later = GENERAL ? S_k - S : 0;
  const int tiles = (S + 63) / 64, in_part = blockIdx.x / part.kv_tiles;
  // longest first if causal
  const int head = part.head + in_part, kv_tile = part.kv_tile + blockIdx.x - in_part * part.kv_tiles;
  const int first = causal ? (GENERAL ? max(kv_tile * 64 - later, 0) / 64 : kv_tile) : 0, trips = tiles - first;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), wg = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0, pair = 2 * (lane & 3);
  const float* stat = stats + ((uint64_t)head * tiles + first) * 128;

  if (wg == 0) {                                   // PRODUCER: warp 0 loads k, q, lse; warp 1 v, do, delta
    regs_down<24>();
    if (warp < 2) {
      const TensorMap* map = warp ? &do_map : &q_map;
      const uint32_t full = warp ? do_full : q_full, empty = warp ? do_empty : q_empty;
      const uint32_t tile_smem = warp ? do_smem : q_smem;
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
      // the first tile of a causal kv tile is its diagonal
      if ((causal && (GENERAL ? (first + i) * 64 < kv0 + 63 - later : i == 0)) || kv0 + 64 > S_k) {
        const int at = (first + i) * 64 + pair + later;
        // first query column that sees the row, less this lane's column
        const int from0 = row >= S_k ? 1 << 30 : causal ? row - at : -1;
        const int from1 = row + 8 >= S_k ? 1 << 30 : causal ? row + 8 - at : -1;
#pragma unroll
        for (int r = 0; r < 32; r++) s[r] = r / 4 * 8 + (r & 1) < ((r & 2) ? from1 : from0) ? 0.f : s[r];
      }
#pragma unroll
      for (int j = 0; j < 8; j++)
        sts_float4(p_mine + slot * P_BYTES + j * 2048, s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
      arrive(p_full + 8 * slot, lane0);
      pack_rows(p, s);
    };
    const uint32_t none = S >> 31;
    // dV has read the P before. The sum with nothing keeps ptxas from making x and p one set of registers, which would
    // serialise every wgmma (C7513)
    auto step_p = [&] {
#pragma unroll
      for (int r = 0; r < 16; r++) x[r] = p[r] + none;
      touch(x);
    };
    // FIRST
    uint32_t kept[KEPT_K][4];                                          // of k
    mbar_wait(k_full, 0); keep(kept, k_smem, warp, lane); mbar_wait(q_full, 0);
    wgmma_fence(); issue_score(s, kept, k_smem, q_smem); load_lse(0); wgmma_wait<0>(); touch(s);
    arrive(q_empty, lane0); exp_p(0, 8); give_p(0); step_p();
#pragma unroll 1
    for (int i = 1; i < trips; i++) {
      const int slot = i & 1, before = slot ^ 1;
      // ISSUE
      mbar_wait(q_full + 8 * slot, i >> 1 & 1);
      wgmma_fence(); issue_score(s, kept, k_smem, q_smem + slot * TILE);
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
  uint32_t kept[KEPT_V][4];                                            // of v
  // dP^T - delta
  auto issue_dp = [&](int slot) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta_smem + slot * STAT_BYTES + (8 * j + pair) * 4);
      s[4 * j] = s[4 * j + 2] = d.x; s[4 * j + 1] = s[4 * j + 3] = d.y;
    }
    touch(s); wgmma_fence(); issue_score(s, kept, v_smem, do_smem + slot * TILE, true);
  };
  // dS^T as dq wants it in shared memory (128-byte swizzle). Query columns of a kv row in the order in which lanes hold
  // them, column 8 j + 2 t + {0, 1} of 32 at 8 t + 2 j + {0, 1}, so that a lane has 16 bytes in a row
  const uint64_t ds_first = ds_place(part, in_part, kv_tile, first, tiles, causal);
  uint16_t* const ds_mine = ds + ds_first * 4096 + (warp * 16 + (lane >> 2)) * 64;
  const int chunk = ((lane & 3) ^ (lane >> 2)) * 8;
  auto store_ds = [&](int i) {
#pragma unroll
    for (int r = 0; r < 2; r++) {                                      // row and row + 8
      uint16_t* const to = ds_mine + (uint64_t)i * 4096 + r * 512;
      *reinterpret_cast<uint4*>(to + chunk) = make_uint4(x[r], x[2 + r], x[4 + r], x[6 + r]);
      *reinterpret_cast<uint4*>(to + (chunk ^ 32)) = make_uint4(x[8 + r], x[10 + r], x[12 + r], x[14 + r]);
    }
  };
  // FIRST
  mbar_wait(v_full, 0); keep(kept, v_smem, warp, lane); mbar_wait(do_full, 0);
  issue_dp(0); take_p(0); wgmma_wait<0>(); touch(s);
  make_ds(0); mbar_wait(q_full, 0);
#pragma unroll 1
  for (int i = 1; i < trips; i++) {
    const int slot = i & 1, before = slot ^ 1;
    // ISSUE
    wgmma_fence(); issue_accumulate(acc, x, q_smem + before * TILE, 0, 1);
    store_ds(i - 1);
    issue_accumulate(acc, x, q_smem + before * TILE, 1, 4);
    mbar_wait(do_full + 8 * slot, i >> 1 & 1);
    issue_dp(slot);
    wgmma_wait<1>(); touch(acc); touch(x); arrive(q_empty + 8 * before, lane0);
    // DS
    take_p(i); wgmma_wait<0>(); touch(s); make_ds(i);
    mbar_wait(q_full + 8 * slot, i >> 1 & 1);      // for the next trip's product: P came of it, so it is here
  }
  // LAST
  wgmma_fence(); issue_accumulate(acc, x, q_smem + ((trips - 1) & 1) * TILE);
  store_ds(trips - 1);
  wgmma_wait<0>(); touch(acc);
  store(dk, dk_at, scale);                                             // STORE
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
dq(const __grid_constant__ TensorMap k_map, const uint16_t* ds, float* sums, uint16_t* dq, int S, int causal,
   float scale, Keys keys, Strides dq_at, Part part) {
  SHARED_MEMORY(smem);
  const uint32_t stages = smem_u32(smem), full = stages + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { mbar_init(full + 8 * i, 1); mbar_init(empty + 8 * i, CONSUMER_WARPS); }
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();
  const int S_k = GENERAL ? keys.seqlen : S, later = GENERAL ? S_k - S : 0;
  const int tiles = (S + 63) / 64, kv_tiles = (S_k + 63) / 64;
  const int blocks = (tiles + 1) / 2, in_part = blockIdx.x / blocks, head = part.head + in_part;
  const int tile0 = (blocks - 1 - (blockIdx.x - in_part * blocks)) * 2;   // longest first
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), lane = threadIdx.x & 31, lane0 = lane == 0;
  // kv tiles that a query tile sees; how many of them are the part's
  auto seen_by = [&](int tile) {
    const int last = GENERAL ? (tile * 64 + 63 + later) / 64 : tile;
    return tile >= tiles ? 0 : causal ? min(last + 1, kv_tiles) : kv_tiles;
  };
  auto trips_of = [&](int tile) { return min(max(seen_by(tile) - part.kv_tile, 0), part.kv_tiles); };
  const int trips0 = trips_of(tile0), trips1 = trips_of(tile0 + 1), trips = max(trips0, trips1);

  if (warps < 4) {                                                 // PRODUCER: one warp
    regs_down<24>();
    if (warps == 0) {
      const Head kv_at = kv_head(head, keys);
#pragma unroll 1
      for (int i = 0; i < trips; i++) {
        const int slot = i % STAGES, kv_tile = part.kv_tile + i;
        const uint32_t k_smem = stages + slot * STAGE_BYTES, ds_smem = k_smem + TILE, bar = full + 8 * slot;
        const uint16_t* from = ds + ds_place(part, in_part, kv_tile, tile0, tiles, causal) * 4096;
        mbar_wait(empty + 8 * slot, (i / STAGES & 1) ^ 1);
        mbar_expect_if(bar, TILE + ((i < trips0) + (i < trips1)) * DS_BYTES, lane0);
        load_tile(k_smem, &k_map, kv_tile * 64, kv_at, bar, lane0);
        bulk_load_if(ds_smem, from, DS_BYTES, bar, lane0 && i < trips0);
        bulk_load_if(ds_smem + DS_BYTES, from + 4096, DS_BYTES, bar, lane0 && i < trips1);
      }
    }
    return;
  }
  regs_up<240>();
  const int w = (warps >> 2) - 1, warp = warps & 3, tile = tile0 + w, mine = w ? trips1 : trips0;
  float acc[D / 2];
  zero(acc);
#pragma unroll 1
  for (int i = 0; i < mine; i++) {
    const uint32_t k_smem = stages + i % STAGES * STAGE_BYTES, ds_smem = k_smem + TILE + w * DS_BYTES;
    mbar_wait(full + 8 * (i % STAGES), i / STAGES & 1);
    // ISSUE
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++)
      MmaSS<D, 1, 1>::mma(acc, desc_low(ds_smem, DS_BYTES) + j * 128, desc_low(k_smem, PANEL) + j * 128, 1);
    wgmma_commit(); wgmma_wait<1>();
    __syncwarp(); mbar_arrive_if(empty + 8 * ((i - 1) % STAGES), lane0 && i);
  }
  wgmma_wait<0>(); touch(acc);
#pragma unroll 1
  for (int i = max(mine - 1, 0); i < trips; i++) {                 // the last, and what only the other sees
    mbar_wait(full + 8 * (i % STAGES), i / STAGES & 1); arrive(empty + 8 * (i % STAGES), lane0);
  }
  if (mine == 0) return;
  // STORE dq, or this thread's sums so far where a head's kv tiles are in several parts
  float4* const so_far = reinterpret_cast<float4*>(sums) + (uint64_t)tile * (32 * 128) + (threadIdx.x & 127);
  if (part.kv_tile > 0) {
#pragma unroll
    for (int j = 0; j < 32; j++) {
      const float4 x = so_far[j * 128];
      acc[4 * j] += x.x; acc[4 * j + 1] += x.y; acc[4 * j + 2] += x.z; acc[4 * j + 3] += x.w;
    }
  }
  if (part.kv_tile + part.kv_tiles < seen_by(tile)) {
#pragma unroll
    for (int j = 0; j < 32; j++)
      so_far[j * 128] = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    return;
  }
  // rows of dkdv's order: row and row + 2
  const int row = tile * 64 + (warp >> 1) * 32 + (lane >> 3) * 8 + (warp & 1) * 4 + (lane >> 2 & 1);
  const uint64_t out = GENERAL ? place_of(dq_at, head, keys.nheads, row) : ((uint64_t)head * S + row) * D;
  store_rows<2>(dq + out, GENERAL ? (int)dq_at.row : D, acc, scale, row, S, lane);
}
