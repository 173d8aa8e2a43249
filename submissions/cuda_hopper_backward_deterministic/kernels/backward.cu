// Attention backward on Hopper (sm_90a), headdim 128, the same bits in every call: five products a tile in one kernel,
// whose blocks add to dq in the order of order.cuh.
//
// Shapes   q, k, v, do [B, H, S, 128] 16-bit floats; TMA boxes of 64 columns, 128-byte swizzle, rows past the end are
//          zeros. dq, dk, dv contiguous. stats, dq_sum: see passes.cu
//          k_smem, v_smem [128, D]   q_smem, do_smem [3][64, D]   ds_smem [2][128, 64]   dq_smem [2][64 x 64 floats]
//
//                  query tiles of 64 →                 one block = 128 kv rows of one head
//   warpgroup 0 ┌────┬────┬────┬────┐                  warpgroup w: kv rows 64 w ... of S^T, P^T, dP^T, dS^T, dk, dv
//     kv 0-63   │diag│    │    │    │                  S^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dS^T Q
//   warpgroup 1 ├────┼────┼────┼────┤                  dQ^T = K^T dS^T needs both halves of dS: they meet in ds_smem.
//     kv 64-127 │ // │diag│    │    │                  warpgroup w has D rows 64 w ... + 63 of dQ^T
//               └─↓──┴─↓──┴─↓──┴─↓──┘
//                 dQ of a tile, through dq_smem: two warps that wait for the block's turn add it to dq_sum
//
// Trip     dP and dV of tile i are issued, dS is made under dV, in 32 bits and in the registers of dP; then the scores
//          of tile i + 1, dQ of tile i - 1 and dK of tile i, and P of tile i + 1 is made under the last two
// Regs     P crosses the trip in 32 bits, in the registers of S. P packed for dV and dS packed for dK share 16 (dV is
//          through before dS is packed), dP, dS in 32 bits and dQ share 32: so the eight warps that multiply need 240,
//          and there is room for four that load and add
// Phases   LOADS   SUMS   FIRST SCORES   TRIP: ISSUE 1, DS, ISSUE 2, P OF NEXT, DQ OUT   STORE
// Bound    10 B H S^2 D / 2 flops (causal) at 4096 per clock and SM; shared memory a trip 3,072 clocks, products 2,560
// Limits   sm_90a, D = 128; any S and scale
// Check    python -m pytest tests/submissions/test_cuda_hopper_backward_deterministic.py
// build: -DHEADDIM=128
// promise: smem_bytes=231016 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DBF16=1
// promise: smem_bytes=231016 registers=168 spills=0 warnings=0 blocks=1
#include "order.cuh"

#ifndef HEADDIM
#define HEADDIM 128
#endif
static_assert(HEADDIM == 128, "this schedule is for headdim 128");

constexpr int D = HEADDIM, PANELS = D / 64;
constexpr int M = 64, N = 128;  // query rows of a tile, kv rows of a block
constexpr int STAGES = 3, DS_BUFFERS = 2;  // tiles of q and do: in use, in use by the scores ahead, arriving
constexpr int NQ = D / 4;  // registers of dQ^T: 64 x 64 a warpgroup
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, DQ_WARP_BYTES = NQ * 32 * 4,
                   STAT_BYTES = M * 4;
constexpr uint32_t KV_PANEL = N * 128, TILE_PANEL = M * 128;
constexpr int THREADS = 384, WARPS = 8;  // warps that multiply

struct Params {
  const float* stats;  // [heads, tiles, 2, 64]: log2(e) * lse, delta
  float* dq_sum;  // [heads, tiles, 64 * D]
  uint16_t* dk;  // [heads, seqlen, D]
  uint16_t* dv;
  Order order;
  int seqlen;
  int causal;
  float scale;  // softmax scale
  float scale_log2;  // the same times log2(e)
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const __grid_constant__ TensorMap q_map,
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES, q_smem = v_smem + KV_BYTES,
                 do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES, dq_smem = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = dq_smem + WARPS * DQ_WARP_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t q_full = delta_smem + STAGES * STAT_BYTES, do_full = q_full + 8 * STAGES,
                 k_full = do_full + 8 * STAGES, v_full = k_full + 8;
  const uint32_t ds_full = v_full + 8, dq_full = ds_full + 8 * DS_BUFFERS,
                 dq_empty = dq_full + 16;  // ds_full of trip i: everybody is through with it
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS + 2; i++) mbar_init(ds_full + 8 * i, WARPS);
    mbar_init(dq_empty, 1);
    mbar_init_done();
    proxy_fence();
  }
  __syncthreads();

  const int tiles = (p.seqlen + M - 1) / M, kv_blocks = (p.seqlen + N - 1) / N;
  const int section = blockIdx.x / (p.order.section * kv_blocks),
            wide = min(p.order.section, p.order.heads - section * p.order.section);
  const Walk walk = walk_of<M, N>(
      p.order, section, wide, blockIdx.x - section * p.order.section * kv_blocks, tiles, kv_blocks, p.causal);
  const int trips = walk.trips, kv0 = walk.kv_block * N;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0;

  if (w == 2) {
    regs_down<24>();
    if (warp == 0) {
      // LOADS of k and v, then of q, do, lse and delta of every tile, as slots become free
      mbar_expect_if(k_full, KV_BYTES, lane0);
#pragma unroll
      for (int c = 0; c < PANELS; c++)
        tma_load_if(k_smem + c * KV_PANEL, &k_map, c * 64, kv0, walk.head, k_full, lane0);
      mbar_expect_if(v_full, KV_BYTES, lane0);
#pragma unroll
      for (int c = 0; c < PANELS; c++)
        tma_load_if(v_smem + c * KV_PANEL, &v_map, c * 64, kv0, walk.head, v_full, lane0);
      int tile = walk.tile, stage = 0;
#pragma unroll 1
      for (int i = 0; i < trips; i++, tile += walk.step) {
        const float* stat = p.stats + ((uint64_t)walk.head * tiles + tile) * (2 * M);
        if (i >= STAGES)
          mbar_wait(
              ds_full + 8 * ((i - STAGES) & 1), (i - STAGES) >> 1 & 1);  // everybody is through with tile i - STAGES
        mbar_expect_if(q_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
        for (int c = 0; c < PANELS; c++)
          tma_load_if(q_smem + stage * TILE_BYTES + c * TILE_PANEL, &q_map, c * 64, tile * M, walk.head,
              q_full + 8 * stage, lane0);
        bulk_load_if(lse_smem + stage * STAT_BYTES, stat, STAT_BYTES, q_full + 8 * stage, lane0);
        mbar_expect_if(do_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
        for (int c = 0; c < PANELS; c++)
          tma_load_if(do_smem + stage * TILE_BYTES + c * TILE_PANEL, &do_map, c * 64, tile * M, walk.head,
              do_full + 8 * stage, lane0);
        bulk_load_if(delta_smem + stage * STAT_BYTES, stat + M, STAT_BYTES, do_full + 8 * stage, lane0);
        if (++stage == STAGES) stage = 0;
      }
    } else if (warp < 3) {
      // SUMS of dQ, each tile when it is this block's turn, by one warp those of even trips, by another of odd ones
      int at = walk.head * tiles + walk.tile + (warp - 1) * walk.step;
#pragma unroll 1
      for (int i = warp - 1; i < trips; i += 2, at += 2 * walk.step) {
        const int rank = rank_of<M, N>(walk, i);
        float* out = p.dq_sum + (uint64_t)at * (M * D);
        counter_wait(p.order.turns + at, rank);
        proxy_fence_global();
        mbar_wait(dq_full + 8 * (i & 1), i >> 1 & 1);
        bulk_store_if(out, dq_smem, WARPS * DQ_WARP_BYTES, lane0 && rank == 0);
        bulk_add_if(out, dq_smem, WARPS * DQ_WARP_BYTES, lane0 && rank > 0);
        bulk_commit();
        bulk_wait_read();
        mbar_arrive_if(dq_empty, lane0);
        bulk_wait();
        counter_add_if(p.order.turns + at, 1, lane0);
      }
    }
    return;
  }
  regs_up<240>();
  const int pair = 2 * (lane & 3);
  const int kv_rows = kv0 + 64 * w,
            row = kv_rows + warp * 16 + (lane >> 2);  // this warpgroup's first kv row; this thread's: row, row + 8
  float s[32], dp[32], dk[D / 2], dv[D / 2];
  uint32_t x[16];
  // where a lane points for 8 x 8 matrices: lanes 8 m ... 8 m + 7 are the rows of matrix m, at rows + 8 (m % 2),
  // chunk + m / 2
  const int matrix_row = 64 * w + warp * 16 + (lane & 15), matrix_chunk = lane >> 4;

  // S^T of a query tile, dP^T: issued only
  auto issue_score = [&](float (&x)[32], uint32_t kv_smem, uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      const uint32_t b = desc_low(tile_smem, 16) + (i & 3) * 2 + (i >> 2) * (TILE_PANEL >> 4);
      MmaSS<64, 0, 0>::mma(x, desc_low(kv_smem + w * 8192, 16) + (i & 3) * 2 + (i >> 2) * (KV_PANEL >> 4), b, i != 0);
    }
    wgmma_commit();
  };
  // acc += x^T tile, x^T [64 kv rows, 64 query columns] in registers
  auto issue_accumulate = [&](float (&acc)[D / 2], const uint32_t (&x)[16], uint32_t tile_smem) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaRS<D, 1>::mma(acc, x + 4 * i, desc_low(tile_smem, TILE_PANEL) + i * 128, 1);
    wgmma_commit();
  };
  auto issue_dq = [&](uint32_t ds_tile) {
#pragma unroll
    for (int i = 0; i < N / 16; i++)
      MmaSS<64, 1, 1>::mma(dp, desc_low(k_smem, KV_PANEL) + i * 128 + w * (KV_PANEL >> 4),
          desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    wgmma_commit();
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, in 32 bits
  auto make_p = [&](int tile, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 l = lds_float2(lse + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, (i & 1) ? -l.y : -l.x));
    }
    if ((p.causal && tile * M < kv_rows + 63) || kv_rows + 64 > p.seqlen) {
      // first query column that sees the row, less this lane's column
      const int seen0 = p.causal ? row - tile * M - pair : -1, from0 = row < p.seqlen ? seen0 : 1 << 30;
      const int seen1 = p.causal ? seen0 + 8 : -1, from1 = row + 8 < p.seqlen ? seen1 : 1 << 30;
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
  };
  // dS^T = P^T (dP^T - delta), where dP^T was
  auto make_ds = [&](uint32_t delta) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) dp[4 * j + i] = s[4 * j + i] * (dp[4 * j + i] - (i & 1 ? d.y : d.x));
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 1; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j - 1 + matrix_chunk), x + 2 * j - 2);
  };
  // this warp's piece of dQ^T of trip i into dq_smem, from where SUMS takes it
  auto dq_to_smem = [&](int i) {
    const uint32_t dq_warp = dq_smem + warps * DQ_WARP_BYTES + lane * 16;
    mbar_wait(dq_empty, (i & 1) ^ 1);  // the tile before has left
#pragma unroll
    for (int j = 0; j < NQ / 4; j++)
      sts_float4(dq_warp + j * 512, dp[4 * j], dp[4 * j + 1], dp[4 * j + 2], dp[4 * j + 3]);
    proxy_fence();
    __syncwarp();
    mbar_arrive_if(dq_full + 8 * (i & 1), lane0);
  };

  // FIRST SCORES
  zero(dk);
  zero(dv);
  mbar_wait(k_full, 0);
  mbar_wait(v_full, 0);
  mbar_wait(q_full, 0);
  wgmma_fence();
  issue_score(s, k_smem, q_smem);
  wgmma_wait<0>();
  touch(s);
  int tile = walk.tile;
  make_p(tile, lse_smem);

  int stage = 0, next = 1;
  uint32_t parity = 0, next_parity = 0;  // of do of this tile; of q of the next one
#pragma unroll 1
  for (int i = 0; i < trips; ++i) {
    const int more = i + 1 < trips;
    const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES,
                   ds_tile = ds_smem + (i & 1) * DS_BYTES;
    // ISSUE 1: dP and dV of this tile
    pack_rows(x, s);
    touch(x);
    mbar_wait(do_full + 8 * stage, parity);
    wgmma_fence();
    issue_score(dp, v_smem, do_tile);
    issue_accumulate(dv, x, do_tile);
    wgmma_wait<1>();
    touch(dp);
    // DS
    make_ds(delta_smem + stage * STAT_BYTES);
    touch(dp);
    // ISSUE 2: scores of the next tile (after the last one of whatever lies there, never looked at), dQ of the one
    // before (of nothing in the first trip, never looked at), dK of this one
    if (more) mbar_wait(q_full + 8 * next, next_parity);
    wgmma_fence();
    issue_score(s, k_smem, q_smem + next * TILE_BYTES);
    wgmma_wait<1>();
    touch(dv);
    touch(x);
    pack_rows(x, dp);
    touch(x);
    mbar_wait(ds_full + 8 * (~i & 1), (i - 1) >> 1 & 1);  // everybody is through with the trip before
    store_ds(ds_tile);
    proxy_fence();
    wgmma_fence();
    issue_dq(ds_smem + (~i & 1) * DS_BYTES);
    issue_accumulate(dk, x, q_tile);
    wgmma_wait<2>();
    touch(s);
    // P OF NEXT
    tile += walk.step;
    if (more) make_p(tile, lse_smem + next * STAT_BYTES);
    // DQ OUT
    wgmma_wait<1>();
    touch(dp);
    if (i > 0) dq_to_smem(i - 1);
    wgmma_wait<0>();
    touch(dk);
    touch(x);
    __syncwarp();
    mbar_arrive_if(ds_full + 8 * (i & 1), lane0);
    stage = next;
    parity = next_parity;
    if (++next == STAGES) next = 0, next_parity ^= 1;
  }
  mbar_wait(ds_full + 8 * (~trips & 1), (trips - 1) >> 1 & 1);
  wgmma_fence();
  issue_dq(ds_smem + (~trips & 1) * DS_BYTES);
  wgmma_wait<0>();
  touch(dp);
  dq_to_smem(trips - 1);

  // STORE
  const uint64_t out = ((uint64_t)walk.head * p.seqlen + row) * D;
  store_rows(p.dv + out, D, dv, 1.f, row, p.seqlen, lane);
  store_rows(p.dk + out, D, dk, p.scale, row, p.seqlen, lane);
}
