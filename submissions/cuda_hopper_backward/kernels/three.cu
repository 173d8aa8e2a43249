// Attention backward on Hopper (sm_90a), headdim 64, in one launch: three warpgroups of 64 kv rows each, so that two
// multiply while one makes P or dS, and a fourth that loads and does the passes before and after for other heads.
//
// Shapes   q, do [B, H, S, 64], k, v [B, H, S_k, 64] 16-bit floats; TMA boxes of 64 columns, 128-byte swizzle,
//          rows past the end are zeros. dq, dk, dv contiguous. stats, dq_sum, done: see passes.cuh
//          k_smem, v_smem [192, 64]   q_smem, do_smem [4][64, 64]   ds_smem [3][192, 64]   lse_smem, delta_smem [4][64, 8]
//
//                  query tiles of 64, left to right →         one item = 192 kv rows of one head
//   warpgroup 0 ┌────┬────┬────┬────┐                          warpgroup w: kv rows 64 w ... + 63 of S^T, P^T, dP^T,
//     kv 0-63   │diag│    │    │    │                          dS^T, dk, dv
//   warpgroup 1 ├────┼────┼────┼────┤                          S^T = K Q^T   dP^T = V dO^T
//     kv 64-127 │ 0  │diag│    │    │                          dV += P^T dO   dK += dS^T Q
//   warpgroup 2 ├────┼────┼────┼────┤                          0: nothing to see, dS = 0 in shared memory
//    kv 128-191 │ 0  │ 0  │diag│    │
//               └─↓──┴─↓──┴─↓──┴─↓──┘
//                 dQ^T = K^T dS^T of a tile: one warpgroup in turn, a trip later, when all three have written their dS;
//                 summed in memory by vector reductions (fp32)
//
// Items    a block stays and takes items from a counter: the loader takes one when the first slots of q and do are free for it, and
//          writes what it is into a record in shared memory, for all warps. With -DONCE=1 one item a block, whose k and v are
//          asked for before all else
// Stats    lse and delta are columns of S and dP, the same for all rows: a fifth product of the same accumulator adds them, with a
//          [64, 16] of halves, in place of 384 wavefronts of loads (of some 2,200 a trip)
// Slots    who waits for dS of tile i - 1 knows that everybody is through with tile i - 2. So tile i + 2 of q and do
//          takes the slot of tile i - 2 (four slots), dS of tile i the place of dS of tile i - 3, which was read in
//          trip i - 2 (three buffers)
// Phases   LOADS   PASSES   TRIP: SCORES, P, DS, DQ of the tile before   STORE
// Order    dS is made of P in 32 bits, all of it before P is packed (ptxas reuses none of an accumulator's registers while one of them
//          is read); dS leaves in one go after dV and dK are issued
// Bound    5 products of 128 clocks for a 64 x 64 tile and 2 of 32; shared memory is busy for 684 of those 704
// Measured one H200, TFLOP/s beside the best of FlashAttention-3, -4 and cuDNN in the same run: causal 4096 579, 505; 16384 607, 556:
//          NOTES.md
// Limits   sm_90a, D = 64; any S and scale. S_k other than S, fewer heads of k and v, o and do not contiguous, q, k, v and
//          do of uneven heads: GENERAL=1. Sums of dq in no fixed order
// Check    python benchmarks/backward_grid.py
// build: -DHEADDIM=64
// promise: smem_bytes=221808 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=64 -DONCE=1
// build: -DHEADDIM=64 -DGENERAL=1
// build: -DHEADDIM=64 -DGENERAL=1 -DBF16=1
#include "passes.cuh"

#ifndef ONCE
#define ONCE 0           // 1: a main block takes the item of its index, and no other
#endif
constexpr int D = 64, GROUPS = 3;
constexpr int M = 64, N = 64 * GROUPS;                 // query rows of a tile, kv rows of a block
constexpr int STAGES = 4, DS_BUFFERS = 3;
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, STAT_BYTES = M * 8 * 2;
constexpr uint32_t SPACE_BYTES = 8192;                 // of each warp that does passes
// of items, in shared memory: kv0 (-1: there are no more), head, section, index
constexpr int RECORDS = 8;
constexpr int THREADS = 128 * GROUPS + 128, WARPS = 4 * GROUPS;

struct Params {
  Passes passes;
  uint16_t* dk;          // [heads, seqlen_k, D]: of each head of q, also where k has fewer
  uint16_t* dv;
  int causal;
  Keys keys;             // GENERAL
};
__device__ __forceinline__ int rows_of_k(const Params& p) { return GENERAL ? p.keys.seqlen : p.passes.seqlen; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
         const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES, q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES, halves_smem = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = halves_smem + 128, delta_smem = lse_smem + STAGES * STAT_BYTES, space = delta_smem + STAGES * STAT_BYTES;
  const uint32_t records = space + 3 * SPACE_BYTES;
  const uint32_t q_full = records + 16 * RECORDS, do_full = q_full + 8 * STAGES, k_full = do_full + 8 * STAGES, v_full = k_full + 8;
  const uint32_t ds_full = v_full + 8, kv_empty = ds_full + 8 * DS_BUFFERS, item_full = kv_empty + 8, item_empty = item_full + 8 * RECORDS;
  const uint32_t pass_full = item_empty + 8 * RECORDS;           // one for each warp of the block, if need be
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS; i++) mbar_init(ds_full + 8 * i, WARPS);
    mbar_init(kv_empty, WARPS);
    for (int i = 0; i < RECORDS; i++) { mbar_init(item_full + 8 * i, 1); mbar_init(item_empty + 8 * i, WARPS + 3); }
    for (int i = 0; i < HALVES; i++) mbar_init(pass_full + 8 * i, 1);
    mbar_init_done();
    const uint32_t halves[4] = {0x3f003f00u, 0x3f00u, 0, 0};     // bfloat16s: 1/2 for each of three parts
    for (int i = 0; i < 8; i++) sts_words(halves_smem + 16 * i, halves);
    proxy_fence();
  }
  __syncthreads();

  // row i sees the keys up to i + later, if causal
  const int seqlen = p.passes.seqlen, later = GENERAL ? p.keys.seqlen - seqlen : 0;
  const int tiles = (seqlen + M - 1) / M, kv_blocks = (rows_of_k(p) + N - 1) / N;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3, lane = threadIdx.x & 31, lane0 = lane == 0;
  const Item item = item_of(blockIdx.x, p.passes, tiles, gridDim.x);
  if (item.kind != MAIN) {
    PassWarp<D> pass{p.passes, base + warps * SPACE_BYTES, pass_full + 8 * warps, lane, tiles};
    const int blocks = (2 * item.wide * tiles + HALVES - 1) / HALVES;
    if (item.kind == FIRST) pass.preprocess_share(item.section, item.index, blocks, warps, HALVES);
    else pass.postprocess_share(item.section, item.index, blocks, warps, HALVES, kv_blocks);
    return;
  }
  // the record of item n of this block, then told that it was read
  auto next_item = [&](int n, uint32_t (&record)[4]) {
    const int at = n % RECORDS;
    mbar_wait(item_full + 8 * at, n / RECORDS & 1);
    lds_words(record, records + 16 * at);
#pragma unroll
    for (int j = 0; j < 4; j++) record[j] = __shfl_sync(~0u, record[j], 0);   // ptxas: in uniform registers
    __syncwarp(); mbar_arrive_if(item_empty + 8 * at, lane0);
    return (int)record[0] >= 0;
  };

  if (w == GROUPS) {
    regs_down<32>();
    if (warp == 0) {
      // ITEMS, LOADS of k and v and of q, do, lse and delta of every tile, as slots become free
      const int items = p.passes.heads * kv_blocks;
      uint32_t* taken = p.passes.done + 2 * sections_of(p.passes), *through = nullptr;
      int n = 0, i = 0;                                          // items, tiles of all of them
#pragma unroll 1
      for (;; n++) {
        const int place = n % RECORDS;
        const int x = ONCE ? (n ? items : item.index) : (int)__shfl_sync(~0u, counter_take_if(taken, lane0), 0);
        const Item one = main_item(x, p.passes, kv_blocks);
        const int kv_block = one.index / max(one.wide, 1), head = one.section * p.passes.section + one.index - kv_block * one.wide, kv0 = kv_block * N;
        const uint32_t record[4] = {x < items ? (uint32_t)kv0 : ~0u, (uint32_t)head, (uint32_t)one.section, (uint32_t)one.index};
        mbar_wait(item_empty + 8 * place, n / RECORDS & 1 ^ 1);
#pragma unroll
        for (int j = 0; j < 4; j++) sts_word_if(records + 16 * place + 4 * j, record[j], lane0);
        __syncwarp(); mbar_arrive_if(item_full + 8 * place, lane0);
        if (x >= items) break;
        const float* stat = p.passes.stats + (uint64_t)head * tiles * TILE_STATS;
        const int first = p.causal ? (GENERAL ? max(kv0 - later, 0) : kv0) / M : 0;
        // k and v are loaded before this tile: slots of those before it are free sooner
        const int kv_tile = min(first + STAGES - 1, tiles - 1);
        const int batch = GENERAL ? head / p.keys.nheads : 0;
        const Head at = {GENERAL ? head - batch * p.keys.nheads : head, batch}, kv_at = {GENERAL ? at.head / p.keys.group : head, batch};
        auto load_kv = [&] {
          mbar_expect_if(k_full, KV_BYTES, lane0); load_box(k_smem, &k_map, 0, kv0, kv_at, k_full, lane0);
          mbar_expect_if(v_full, KV_BYTES, lane0); load_box(v_smem, &v_map, 0, kv0, kv_at, v_full, lane0);
        };
        if (ONCE) load_kv();
        counter_wait(p.passes.done + 2 * one.section, 2 * one.wide * tiles); proxy_fence_global();
#pragma unroll 1
        for (int tile = first; tile < tiles; ++tile, ++i) {
          if (!ONCE && tile == kv_tile) {
            if (n) mbar_wait(kv_empty, (n - 1) & 1);             // everybody is through with the item before
            load_kv();
            if (n) counter_add_fenced_if(through, 1, lane0);
          }
          const int stage = i % STAGES;
          if (i >= STAGES) mbar_wait(ds_full + 8 * ((i - STAGES + 1) % DS_BUFFERS), (i - STAGES + 1) / DS_BUFFERS & 1);   // everybody is through with tile i - STAGES
          mbar_expect_if(q_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
          load_box(q_smem + stage * TILE_BYTES, &q_map, 0, tile * M, at, q_full + 8 * stage, lane0);
          bulk_load_if(lse_smem + stage * STAT_BYTES, stat + tile * TILE_STATS, STAT_BYTES, q_full + 8 * stage, lane0);
          mbar_expect_if(do_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
          load_box(do_smem + stage * TILE_BYTES, &do_map, 0, tile * M, at, do_full + 8 * stage, lane0);
          bulk_load_if(delta_smem + stage * STAT_BYTES, stat + tile * TILE_STATS + TILE_STATS / 2, STAT_BYTES, do_full + 8 * stage, lane0);
        }
        through = p.passes.done + 2 * one.section + 1;
      }
      if (n) { mbar_wait(kv_empty, (n - 1) & 1); counter_add_fenced_if(through, 1, lane0); }
    } else {
      // PASSES of other heads
      PassWarp<D> pass{p.passes, space + (warp - 1) * SPACE_BYTES, pass_full + 8 * (warp - 1), lane, tiles};
      uint32_t record[4];
#pragma unroll 1
      for (; next_item(pass.parity >> 1, record); pass.parity += 2) {   // a register less
        const int section = record[2], index = record[3], blocks = section_width(p.passes, section) * kv_blocks;
        pass.preprocess_share(section + 2, index, blocks, warp - 1, 3);
        pass.postprocess_share(section - 2, index, blocks, warp - 1, 3, kv_blocks);
      }
    }
    return;
  }
  regs_up<160>();

  float dk[32], dv[32], s[32], dp[32]; uint32_t pt[4][4], ds[4][4];   // pt, ds: of 16 query columns each
  // of an item; kv_rows: this warpgroup's first kv row; begin: first query tile that sees its rows
  int head, kv_rows, first, begin;
  // where this lane stores its first row of dS in a buffer
  const uint32_t ds_at = swizzled(0, 64 * w + warp * 16 + (lane & 15), lane >> 4);

  // x = this warpgroup's rows of K or V times a tile of q or do, transposed, - lse / scale or - delta: [64 kv rows, 64 query columns]
  auto issue_score = [&](float (&x)[32], uint32_t kv, uint32_t tile_smem, uint32_t stat) {
#pragma unroll
    for (int i = 0; i < 4; i++) MmaSS<64, 0, 0>::mma(x, desc_low(kv, 16) + w * 512 + i * 2, desc_low(tile_smem, 16) + i * 2, i != 0);
    MmaColumns::mma(x, halves_smem, stat);
    wgmma_commit();
  };
  // acc += x^T tile over 16 query columns, x^T [64 kv rows, 16 query columns] in registers; issued only
  auto accumulate = [&](float (&acc)[32], const uint32_t (&x)[4], uint32_t tile_smem, int step) {
    MmaRS<64, 1>::mma(acc, x, desc_low(tile_smem, TILE_BYTES) + step * 128, 1);
  };
  // P^T = 2^(S^T * scale - lse), 0 above the diagonal and past the last key, in 32 bits
  auto make_p = [&](int tile) {
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = exp2_approx(s[i] * p.passes.scale_log2);
    if ((p.causal && tile * M < kv_rows + 63 - later) || kv_rows + 64 > rows_of_k(p)) {
      const int row = kv_rows + warp * 16 + (lane_now() >> 2), pair = 2 * (lane_now() & 3);
      // first query column that sees the row,
      const int from0 = row >= rows_of_k(p) ? 1 << 30 : p.causal ? row - later - tile * M - pair : -1;
      // less this lane's column
      const int from1 = row + 8 >= rows_of_k(p) ? 1 << 30 : p.causal ? row + 8 - later - tile * M - pair : -1;
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
  };
  auto pack_p = [&] {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
      for (int i = 0; i < 4; i++) pt[step][i] = pack_half2(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
      touch(pt[step]);
    }
  };
  // dS^T = P^T (dP^T - delta), to 16 bits
  auto make_ds = [&] {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {                              // two columns of a row
        const int at = 8 * step + 2 * i;
        ds[step][i] = pack_half2(s[at] * dp[at], s[at + 1] * dp[at + 1]);
      }
      touch(ds[step]);
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) store_matrices((ds_tile + ds_at) ^ (j << 4), ds[j / 2]);   // chunk j of a row
  };
  // dQ^T of a tile = K^T dS^T, 16 of its D rows a warp, added to dq_sum
  auto issue_dq = [&](float (&dq)[32], uint32_t ds_tile) {
#pragma unroll
    for (int i = 0; i < N / 16; i++) MmaSS<64, 1, 1>::mma(dq, desc_low(k_smem, KV_BYTES) + i * 128, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    wgmma_commit();
  };
  auto add_dq = [&](const float (&dq)[32], int tile) {
    float* out = p.passes.dq_sum + ((uint64_t)head * tiles + tile) * (M * D) + warp * 512 + lane_now() * 4;
#pragma unroll
    for (int j = 0; j < 8; j++)                                  // PassWarp::postprocess: columns 0 ... 31 of all D rows, then columns 32 ... 63
      red_add_float4(out + (j / 4) * 2048 + (j % 4) * 128, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  };

  // dS of tile i of a block is in buffer i % 3; ds_parity: of the buffer before
  int i = 0, buffer = 0, turn = GROUPS - 1; uint32_t ds_parity = 1, record[4];
#pragma unroll 1
  for (int n = 0; next_item(n, record); n++) {
    const int kv0 = record[0];
    head = record[1]; kv_rows = kv0 + 64 * w; first = p.causal ? (GENERAL ? max(kv0 - later, 0) : kv0) / M : 0;
    const int sees = p.causal ? (GENERAL ? max(kv_rows - later, 0) / M : first + w) : first;
    begin = kv_rows >= rows_of_k(p) ? tiles : sees;
    zero(dk); zero(dv);
    mbar_wait(k_full, n & 1); mbar_wait(v_full, n & 1);
#pragma unroll 1
    for (int tile = first; tile < tiles; ++tile, ++i) {
      const int stage = i % STAGES, before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1; const uint32_t parity = (uint32_t)i / STAGES & 1;
      const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES, ds_tile = ds_smem + buffer * DS_BYTES;
      if (tile >= begin) {
        // SCORES, P, DS
        mbar_wait(q_full + 8 * stage, parity); mbar_wait(do_full + 8 * stage, parity);
        wgmma_fence();
        issue_score(s, k_smem, q_tile, lse_smem + stage * STAT_BYTES); issue_score(dp, v_smem, do_tile, delta_smem + stage * STAT_BYTES);
        wgmma_wait<1>(); touch(s);
        make_p(tile);
        wgmma_wait<0>(); touch(dp);
        make_ds(); pack_p();
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) accumulate(dv, pt[step], do_tile, step);
#pragma unroll
        for (int step = 0; step < 4; step++) accumulate(dk, ds[step], q_tile, step);
        wgmma_commit();
        mbar_wait(ds_full + 8 * before, ds_parity);  // all made dS of the tile before: nobody is two trips behind
        store_ds(ds_tile);
        proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
        // DQ
        if (turn == w && tile > first) {
          float dq[32];
          wgmma_fence(); issue_dq(dq, ds_smem + before * DS_BYTES); wgmma_wait<0>(); touch(dq); touch(dv); touch(dk);
          add_dq(dq, tile - 1);
        }
        wgmma_wait<0>(); touch(dv); touch(dk);
      } else {                                                     // nothing to see: dS = 0
        mbar_wait(ds_full + 8 * before, ds_parity);
        const uint32_t none[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 8; j += 2) store_matrices((ds_tile + ds_at) ^ (j << 4), none);
        proxy_fence(); __syncwarp(); mbar_arrive_if(ds_full + 8 * buffer, lane0);
      }
      if (turn == w && tile > first && tile < begin) {
        float dq[32];
        wgmma_fence(); issue_dq(dq, ds_smem + before * DS_BYTES); wgmma_wait<0>(); touch(dq);
        add_dq(dq, tile - 1);
      }
      turn = turn == GROUPS - 1 ? 0 : turn + 1;
      if (buffer == 0) ds_parity ^= 1;
      buffer = buffer == DS_BUFFERS - 1 ? 0 : buffer + 1;
    }
    if (turn == w) {
      const int before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1;
      mbar_wait(ds_full + 8 * before, ds_parity);
      float dq[32];
      wgmma_fence(); issue_dq(dq, ds_smem + before * DS_BYTES); wgmma_wait<0>(); touch(dq);
      add_dq(dq, tiles - 1);
    }
    __syncwarp(); mbar_arrive_if(kv_empty, lane0);

    // STORE
    const int row = kv_rows + warp * 16 + (lane_now() >> 2);
    const uint64_t out = ((uint64_t)head * rows_of_k(p) + row) * D;
    store_rows(p.dv + out, D, dv, 1.f, row, rows_of_k(p), lane_now()); store_rows(p.dk + out, D, dk, p.passes.scale, row, rows_of_k(p), lane_now());
  }
}
