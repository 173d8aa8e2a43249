// Attention backward on Hopper (sm_90a), headdim 64, the same bits in every call, in one launch: three warpgroups of 64
// kv rows each, so that two multiply while one makes P or dS, and a fourth that loads, waits for turns and does the
// pass before for other heads. Blocks add to dq in the order of order.cuh; the last one of a tile writes dq.
//
// Shapes   q, k, v, do [B, H, S, 64] 16-bit floats; TMA boxes of 64 columns, 128-byte swizzle, rows past the end are
//          zeros. dq, dk, dv contiguous. stats, dq_sum, done: see passes.cuh
//          k_smem, v_smem [192, 64]   q_smem, do_smem [4][64, 64]   ds_smem [3][192, 64]
//          lse_smem, delta_smem [4][64, 8]
//
//                  query tiles of 64 →                 one item = 192 kv rows of one head
//   warpgroup 0 ┌────┬────┬────┬────┐                  warpgroup w: kv rows 64 w ... of S^T, P^T, dP^T, dS^T, dk, dv
//     kv 0-63   │diag│    │    │    │                  S^T = K Q^T   dP^T = V dO^T
//   warpgroup 1 ├────┼────┼────┼────┤                  dV += P^T dO   dK += dS^T Q
//     kv 64-127 │ 0  │diag│    │    │                  0: nothing to see, dS = 0 in shared memory
//   warpgroup 2 ├────┼────┼────┼────┤
//    kv 128-191 │ 0  │ 0  │diag│    │
//               └─↓──┴─↓──┴─↓──┴─↓──┘
//                 dQ^T = K^T dS^T of a tile: one warpgroup in turn, a trip later, when all three have written their dS;
//                 summed in memory by vector reductions (fp32) when it is the block's turn
//
// Items    a block stays and takes items from a counter, in their order; a record in shared memory tells all its warps
// Stats    lse and delta are columns of S and dP, the same for all rows: a fifth product of the same accumulator adds
//          them, with a [64, 16] of halves, in place of 384 wavefronts of loads (of some 2,200 a trip)
// Slots    who waits for dS of tile i - 1 knows that everybody is through with tile i - 2. So tile i + 2 of q and do
//          takes the slot of tile i - 2 (four slots), dS of tile i the place of dS of tile i - 3, which was read in
//          trip i - 2 (three buffers)
// Turns    two warps hold the talk with other blocks, so that nobody who multiplies waits for the memory of a count
// Phases   LOADS   TURNS   PASSES   TRIP: SCORES, P, DS, DQ of the tile before   STORE
// Order    dS is made of P in 32 bits, all of it before P is packed (ptxas reuses none of an accumulator's registers
//          while one of them is read); dS leaves in one go after dV and dK are issued
// Bound    5 products of 128 clocks for a 64 x 64 tile; shared memory is busy for 672 of those 640
// Limits   sm_90a, D = 64; any S and scale
// Check    python -m pytest tests/submissions/test_cuda_hopper_backward_deterministic.py
// build: -DHEADDIM=64
// promise: smem_bytes=205472 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=64 -DBF16=1
// promise: smem_bytes=205472 registers=128 spills=0 warnings=0 blocks=1
#include "passes.cuh"

constexpr int D = 64, GROUPS = 3;
constexpr int M = 64, N = 64 * GROUPS;  // query rows of a tile, kv rows of a block
constexpr int STAGES = 4, DS_BUFFERS = 3;
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2, STAT_BYTES = M * 8 * 2;
constexpr uint32_t SPACE_BYTES = 8192;  // of each warp that does passes
constexpr int RECORDS = 8;  // of items, in shared memory: section (-1: there are no more), index
constexpr int THREADS = 128 * GROUPS + 128, WARPS = 4 * GROUPS;

struct Params {
  Passes passes;
  uint16_t* dk;  // [heads, seqlen, D]
  uint16_t* dv;
  int causal;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const __grid_constant__ TensorMap q_map,
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap do_map, const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES, q_smem = v_smem + KV_BYTES,
                 do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + STAGES * TILE_BYTES, halves_smem = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = halves_smem + 128, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t space = delta_smem + STAGES * STAT_BYTES, records = space + SPACE_BYTES;
  const uint32_t q_full = records + 16 * RECORDS, do_full = q_full + 8 * STAGES,
                 k_full = do_full + 8 * STAGES, v_full = k_full + 8;
  const uint32_t ds_full = v_full + 8, turn = ds_full + 8 * DS_BUFFERS, added = turn + 16,
                 passed = added + 16;  // these three: of even and of odd trips
  const uint32_t kv_empty = passed + 16, item_full = kv_empty + 8, item_empty = item_full + 8 * RECORDS;
  const uint32_t pass_full = item_empty + 8 * RECORDS;  // one for each warp of the block, if need be
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * STAGES + 2; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < DS_BUFFERS; i++) mbar_init(ds_full + 8 * i, WARPS);
    for (int i = 0; i < 2; i++) {
      mbar_init(turn + 8 * i, 1);
      mbar_init(added + 8 * i, 4);
      mbar_init(passed + 8 * i, 1);
    }
    mbar_init(kv_empty, WARPS);
    for (int i = 0; i < RECORDS; i++) {
      mbar_init(item_full + 8 * i, 1);
      mbar_init(item_empty + 8 * i, WARPS + 3);
    }
    for (int i = 0; i < HALVES; i++) mbar_init(pass_full + 8 * i, 1);
    mbar_init_done();
    const uint32_t halves[4] = {0x3f003f00u, 0x3f00u, 0, 0};  // bfloat16s: 1/2 for each of three parts
    for (int i = 0; i < 8; i++) sts_words(halves_smem + 16 * i, halves);
    proxy_fence();
  }
  __syncthreads();

  const int seqlen = p.passes.seqlen;
  const int tiles = (seqlen + M - 1) / M, kv_blocks = (seqlen + N - 1) / N;
  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3, lane = threadIdx.x & 31,
            lane0 = lane == 0;
  const Item item = item_of(blockIdx.x, p.passes.order, tiles);
  if (item.first) {
    PassWarp<D> pass{p.passes, base + warps * SPACE_BYTES, pass_full + 8 * warps, lane, tiles};
    const int blocks = (2 * item.wide * tiles + HALVES - 1) / HALVES;
    pass.preprocess_share(item.section, item.index, blocks, warps, HALVES);
    return;
  }
  // the walk of item n of this block; its record is told that it was read
  auto next_item = [&](int n, uint32_t(&record)[4], Walk& walk) {
    const int at = n % RECORDS;
    mbar_wait(item_full + 8 * at, n / RECORDS & 1);
    lds_words(record, records + 16 * at);
#pragma unroll
    for (int j = 0; j < 2; j++) record[j] = __shfl_sync(~0u, record[j], 0);  // ptxas: in uniform registers
    __syncwarp();
    mbar_arrive_if(item_empty + 8 * at, lane0);
    if ((int)record[0] < 0) return false;
    const int section = record[0], index = record[1], wide = section_width(p.passes.order, section);
    walk = walk_of<M, N>(p.passes.order, section, wide, index, tiles, kv_blocks, p.causal);
    return true;
  };

  if (w == GROUPS) {
    regs_down<32>();
    Walk walk;
    uint32_t record[4] = {0, 0, 0, 0};
    if (warp == 0) {
      // ITEMS, LOADS of k and v and of q, do, lse and delta of every tile, as slots become free
      const int heads = p.passes.order.heads, wide = p.passes.order.section, items = heads * kv_blocks;
      uint32_t* taken = p.passes.done + (heads + wide - 1) / wide;
      int i = 0;  // tiles of all items
#pragma unroll 1
      for (int n = 0;; n++) {
        const int place = n % RECORDS, x = __shfl_sync(~0u, counter_take_if(taken, lane0), 0);
        const Item one = main_item(x, p.passes.order, kv_blocks);
        record[0] = x < items ? one.section : -1;
        record[1] = one.index;
        mbar_wait(item_empty + 8 * place, n / RECORDS & 1 ^ 1);
#pragma unroll
        for (int j = 0; j < 2; j++) sts_word_if(records + 16 * place + 4 * j, record[j], lane0);
        __syncwarp();
        mbar_arrive_if(item_full + 8 * place, lane0);
        if (x >= items) break;
        walk = walk_of<M, N>(p.passes.order, one.section, one.wide, one.index, tiles, kv_blocks, p.causal);
        const float* stat = p.passes.stats + (uint64_t)walk.head * tiles * TILE_STATS;
        // k and v are loaded before this tile: slots of those before it are free sooner
        const int kv_trip = min(STAGES, walk.trips) - 1;
        counter_wait(p.passes.done + one.section, 2 * one.wide * tiles);
        proxy_fence_global();
#pragma unroll 1
        for (int trip = 0, tile = walk.tile; trip < walk.trips; trip++, i++, tile += walk.step) {
          if (trip == kv_trip) {
            if (n) mbar_wait(kv_empty, (n - 1) & 1);  // everybody is through with the item before
            mbar_expect_if(k_full, KV_BYTES, lane0);
            tma_load_if(k_smem, &k_map, 0, walk.kv_block * N, walk.head, k_full, lane0);
            mbar_expect_if(v_full, KV_BYTES, lane0);
            tma_load_if(v_smem, &v_map, 0, walk.kv_block * N, walk.head, v_full, lane0);
          }
          const int stage = i % STAGES;
          if (i >= STAGES)
            // everybody is through with tile i - STAGES
            mbar_wait(ds_full + 8 * ((i - STAGES + 1) % DS_BUFFERS), (i - STAGES + 1) / DS_BUFFERS & 1);
          const float* lse = stat + tile * TILE_STATS;
          mbar_expect_if(q_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
          tma_load_if(q_smem + stage * TILE_BYTES, &q_map, 0, tile * M, walk.head, q_full + 8 * stage, lane0);
          bulk_load_if(lse_smem + stage * STAT_BYTES, lse, STAT_BYTES, q_full + 8 * stage, lane0);
          mbar_expect_if(do_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
          tma_load_if(do_smem + stage * TILE_BYTES, &do_map, 0, tile * M, walk.head, do_full + 8 * stage, lane0);
          bulk_load_if(
              delta_smem + stage * STAT_BYTES, lse + TILE_STATS / 2, STAT_BYTES, do_full + 8 * stage, lane0);
        }
      }
    } else if (warp == 1) {
      // TURNS: when it is this block's turn to add dQ of a tile, up to two tiles ahead of who adds
      int i = 0;
#pragma unroll 1
      for (int n = 0; next_item(n, record, walk); n++) {
        const uint32_t* counts = p.passes.order.turns + walk.head * tiles + walk.tile;
#pragma unroll 1
        for (int trip = 0; trip < walk.trips; trip++, i++, counts += walk.step) {
          counter_wait(counts, rank_of<M, N>(walk, trip));
          mbar_wait(passed + 8 * (i & 1), i >> 1 & 1 ^ 1);
          mbar_arrive_if(turn + 8 * (i & 1), lane0);
        }
      }
    } else if (warp == 2) {
      // and the next block's, when this one has added
      int i = 0;
#pragma unroll 1
      for (int n = 0; next_item(n, record, walk); n++) {
        uint32_t* counts = p.passes.order.turns + walk.head * tiles + walk.tile;
#pragma unroll 1
        for (int trip = 0; trip < walk.trips; trip++, i++, counts += walk.step) {
          mbar_wait(added + 8 * (i & 1), i >> 1 & 1);
          counter_add_if(counts, 1, lane0);
          mbar_arrive_if(passed + 8 * (i & 1), lane0);
        }
      }
    } else {
      // PASSES of other heads
      PassWarp<D> pass{p.passes, space, pass_full, lane, tiles};
#pragma unroll 1
      for (int n = 0; next_item(n, record, walk); n++) {
        const int section = record[0], blocks = section_width(p.passes.order, section) * kv_blocks;
        pass.preprocess_share(section + 2, record[1], blocks, 0, 1);
      }
    }
    return;
  }
  regs_up<160>();

  Walk walk;
  int kv_rows, begin;  // this warpgroup's first kv row, first query tile that sees its rows
  float dk[32], dv[32], s[32], dp[32];
  uint32_t pt[4][4], ds[4][4];  // of 16 query columns each
  // where this lane stores its first row of dS in a buffer
  const uint32_t ds_at = swizzled(0, 64 * w + warp * 16 + (lane & 15), lane >> 4);

  // x = this warpgroup's rows of K or V times a tile of q or do, transposed, - lse / scale or - delta:
  // [64 kv rows, 64 query columns]
  auto issue_score = [&](float (&x)[32], uint32_t kv, uint32_t tile_smem, uint32_t stat) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      MmaSS<64, 0, 0>::mma(x, desc_low(kv, 16) + w * 512 + i * 2, desc_low(tile_smem, 16) + i * 2, i != 0);
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
    if ((p.causal && tile * M < kv_rows + 63) || kv_rows + 64 > seqlen) {
      const int row = kv_rows + warp * 16 + (lane_now() >> 2), pair = 2 * (lane_now() & 3);  // a register less
      // first query column that sees the row, less this lane's column
      const int seen0 = p.causal ? row - tile * M - pair : -1, from0 = row < seqlen ? seen0 : 1 << 30;
      const int seen1 = p.causal ? seen0 + 8 : -1, from1 = row + 8 < seqlen ? seen1 : 1 << 30;
#pragma unroll
      for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + (i & 1) < ((i & 2) ? from1 : from0) ? 0.f : s[i];
    }
  };
  auto pack_p = [&] {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
      for (int j = 0; j < 4; j++) pt[step][j] = pack_half2(s[8 * step + 2 * j], s[8 * step + 2 * j + 1]);
      touch(pt[step]);
    }
  };
  // dS^T = P^T (dP^T - delta), to 16 bits
  auto make_ds = [&] {
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
      for (int j = 0; j < 4; j++) {  // two columns of a row
        const int at = 8 * step + 2 * j;
        ds[step][j] = pack_half2(s[at] * dp[at], s[at + 1] * dp[at + 1]);
      }
      touch(ds[step]);
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) store_matrices((ds_tile + ds_at) ^ (j << 4), ds[j / 2]);  // chunk j of a row
  };
  // dQ^T of a tile = K^T dS^T, 16 of its D rows a warp, added to dq_sum
  auto issue_dq = [&](float (&dq)[32], uint32_t ds_tile) {
#pragma unroll
    for (int i = 0; i < N / 16; i++)
      MmaSS<64, 1, 1>::mma(dq, desc_low(k_smem, KV_BYTES) + i * 128, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    wgmma_commit();
  };
  // tile `trip` of the item, i of all
  auto add_dq = [&](int trip, int i, int buffer) {
    float dq[32];
    wgmma_fence();
    issue_dq(dq, ds_smem + buffer * DS_BYTES);
    wgmma_wait<0>();
    touch(dq);
    touch(dv);
    touch(dk);
    const int tile = walk.tile + trip * walk.step, rank = rank_of<M, N>(walk, trip);
    float* sum = p.passes.dq_sum + ((uint64_t)walk.head * tiles + tile) * (M * D) + warp * 512 + lane_now() * 4;
    auto piece = [](int j) { return (j / 4) * 2048 + (j % 4) * 128; };  // of registers 4 j ... 4 j + 3
    mbar_wait(turn + 8 * (i & 1), i >> 1 & 1);
    if (rank == blocks_of<M, N>(tile, kv_blocks, p.causal) - 1) {  // the last one: dq out of its sums
      if (rank > 0) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          const float4 x = load_float4(sum + piece(j));
          dq[4 * j] += x.x;
          dq[4 * j + 1] += x.y;
          dq[4 * j + 2] += x.z;
          dq[4 * j + 3] += x.w;
        }
      }
      const int row = tile * M + (lane_now() >> 2);
      uint16_t* out = p.passes.dq + ((uint64_t)walk.head * seqlen + row) * D + warp * 16 + 2 * (lane_now() & 3);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const uint32_t low = transpose_matrix(pack_half2(dq[4 * j] * p.passes.scale, dq[4 * j + 1] * p.passes.scale));
        const uint32_t high = transpose_matrix(
            pack_half2(dq[4 * j + 2] * p.passes.scale, dq[4 * j + 3] * p.passes.scale));
        if (row + 8 * j < seqlen) {
          *reinterpret_cast<uint32_t*>(out + 8 * j * D) = low;
          *reinterpret_cast<uint32_t*>(out + 8 * j * D + 8) = high;
        }
      }
    } else if (rank == 0) {
#pragma unroll
      for (int j = 0; j < 8; j++)
        *reinterpret_cast<float4*>(sum + piece(j)) = make_float4(
            dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++)
        red_add_float4(sum + piece(j), dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }
    __syncwarp();
    mbar_arrive_if(added + 8 * (i & 1), lane0);
  };

  int i = 0, buffer = 0, adds = GROUPS - 1;  // i: tiles of all items
  uint32_t ds_parity = 1, record[4];  // dS of tile i of a block is in buffer i % 3; ds_parity: of the buffer before
#pragma unroll 1
  for (int n = 0; next_item(n, record, walk); n++) {
    kv_rows = walk.kv_block * N + 64 * w;
    begin = kv_rows < seqlen ? (p.causal ? kv_rows / M : 0) : tiles;
    zero(dk);
    zero(dv);
    mbar_wait(k_full, n & 1);
    mbar_wait(v_full, n & 1);
#pragma unroll 1
    for (int trip = 0, tile = walk.tile; trip < walk.trips; trip++, i++, tile += walk.step) {
      const int stage = i % STAGES, before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1;
      const uint32_t parity = (uint32_t)i / STAGES & 1;
      const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + stage * TILE_BYTES,
                     ds_tile = ds_smem + buffer * DS_BYTES;
      if (tile >= begin) {
        // SCORES, P, DS
        mbar_wait(q_full + 8 * stage, parity);
        mbar_wait(do_full + 8 * stage, parity);
        wgmma_fence();
        issue_score(s, k_smem, q_tile, lse_smem + stage * STAT_BYTES);
        issue_score(dp, v_smem, do_tile, delta_smem + stage * STAT_BYTES);
        wgmma_wait<1>();
        touch(s);
        make_p(tile);
        wgmma_wait<0>();
        touch(dp);
        make_ds();
        pack_p();
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; step++) accumulate(dv, pt[step], do_tile, step);
#pragma unroll
        for (int step = 0; step < 4; step++) accumulate(dk, ds[step], q_tile, step);
        wgmma_commit();
        mbar_wait(ds_full + 8 * before, ds_parity);  // everybody made dS of the tile before: nobody is two trips behind
        store_ds(ds_tile);
        proxy_fence();
        __syncwarp();
        mbar_arrive_if(ds_full + 8 * buffer, lane0);
      } else {  // nothing to see: dS = 0
        mbar_wait(ds_full + 8 * before, ds_parity);
        const uint32_t none[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < 8; j += 2) store_matrices((ds_tile + ds_at) ^ (j << 4), none);
        proxy_fence();
        __syncwarp();
        mbar_arrive_if(ds_full + 8 * buffer, lane0);
      }
      if (adds == w && trip > 0) add_dq(trip - 1, i - 1, before);
      wgmma_wait<0>();
      touch(dv);
      touch(dk);
      adds = adds == GROUPS - 1 ? 0 : adds + 1;
      if (buffer == 0) ds_parity ^= 1;
      buffer = buffer == DS_BUFFERS - 1 ? 0 : buffer + 1;
    }
    if (adds == w) {
      const int before = buffer == 0 ? DS_BUFFERS - 1 : buffer - 1;
      mbar_wait(ds_full + 8 * before, ds_parity);
      add_dq(walk.trips - 1, i - 1, before);
    }
    __syncwarp();
    mbar_arrive_if(kv_empty, lane0);

    // STORE
    const int row = kv_rows + warp * 16 + (lane_now() >> 2);
    const uint64_t out = ((uint64_t)walk.head * seqlen + row) * D;
    store_rows(p.dv + out, D, dv, 1.f, row, seqlen, lane_now());
    store_rows(p.dk + out, D, dk, p.passes.scale, row, seqlen, lane_now());
  }
}
