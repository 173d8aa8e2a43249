// Attention backward on Hopper (sm_90a), headdim 128, of sequences packed into one row: a block keeps dk and dv of 128
// kv rows in registers while it walks the query tiles of every head of q that these rows serve.
//
// Shapes   q, o, do, dq [H, S, 128], k, v, dk, dv [H_kv, S, 128] 16-bit floats, contiguous; lse [H, S]
//          stats, dq_sum: passes.cu
//          edges [ceil(S / 128) * 128, 2] int: the query rows that see a kv row, from and to; none past S
//          k_smem, v_smem [128, D]   q_smem [3][64, D]   do_smem [2][64, D]   ds_smem [2][128, 64]
//          dq_smem 8 warps x 16 x 64 floats   edges_smem [128, 2]
//
//            queries →                                   one item = 128 kv rows of a head of k and v. Rows of two
//   kv 0     │\A │   │   │   item 0: all of A, some B    sequences may lie in it: each kv row has its own first and
//            │  \│ B │   │                               last query row, and tiles need not begin where sequences
//   kv 128   │   │\  │   │   item 1: some of B, some C   do. Masks are made only in tiles that hold an edge for some
//            │   │  \│ C │                               of 64 rows. Then the same tiles of the next head of q
//
// Trip     as in backward.cu: scores of tile i + 1 ahead of dK of tile i and dQ of tile i - 1. No dk or dv of single
//          heads of q, no sum of them
// Items    taken by blocks that stay, from a counter, in the order of kv heads, then kv rows: q, do and the sums of dq
//          of one head of q after the other are in L2
// Passes   launches of their own (passes.cu), of all heads: NOTES.md has what spare warps made of them
// Phases   LOADS   FIRST SCORES   TRIP: ISSUE 1, DS, ISSUE 2, P OF NEXT, DQ OUT   LAST DQ   STORE
// Bound    tensor cores: 10 D flops for each pair of query and key that see each other, at 4096 per clock and SM
// Measured NOTES.md
// Limits   sm_90a, D = 128. Sums of dq in no fixed order
// Check    python -m pytest tests/submissions/test_cuda_hopper_backward_packed.py
// build: -DHEADDIM=128
// promise: smem_bytes=215456 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DBF16=1
// promise: smem_bytes=215456 registers=168 spills=0 warnings=0 blocks=1
#include "rows.cuh"

constexpr int D = 128, PANELS = D / 64;
constexpr int M = 64, N = 128;                           // query rows of a tile, kv rows of an item
constexpr int STAGES = 3, DO_STAGES = 2, DS_BUFFERS = 2; // tiles of q: in use, of the scores ahead, arriving; of do
constexpr int NQ = D / 4;                                // registers of dQ^T: 64 x 64 a warpgroup
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2;
constexpr uint32_t DQ_WARP_BYTES = NQ * 32 * 4, STAT_BYTES = M * 4, EDGE_BYTES = N * 8;
constexpr uint32_t KV_PANEL = N * 128, TILE_PANEL = M * 128;
constexpr int THREADS = 256, WARPS = 8;                  // that multiply
constexpr int ALL_THREADS = THREADS + 128;
constexpr int RECORDS = 4, RECORD_BYTES = 16;            // of items, by the warp that loads for those that multiply
constexpr int NOBODY = 1 << 30;                          // no query row sees a kv row from here on

struct Params {
  const int* edges;
  const float* stats;
  float* dq_sum;         // zeros before
  uint16_t* dk;
  uint16_t* dv;
  uint32_t* taken;       // items taken; zero before
  int seqlen;
  int kv_heads;
  int group;             // heads of q that one of them serves
  float scale;           // softmax scale
  float scale_log2;      // the same times log2(e)
};

// edges of 128 kv rows a block, by a binary search in `begins` [count + 1]: where each sequence begins, last the total
extern "C" __global__ void __launch_bounds__(N)
find_edges(const int* begins, int count, int causal, int S, int* edges) {
  const int row = blockIdx.x * N + threadIdx.x;
  int low = 0, high = count;                             // the last sequence that begins at or before the row
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (begins[middle] <= row) low = middle; else high = middle - 1;
  }
  const int inside = row < S && low < count && begins[low] <= row;
  edges[2 * row] = !inside ? NOBODY : causal ? row : begins[low];
  edges[2 * row + 1] = inside ? min(begins[low + 1], S) : 0;
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
         const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map,
         const __grid_constant__ Params p) {
  SHARED_MEMORY(smem);
  const uint32_t base = smem_u32(smem);
  const uint32_t k_smem = base, v_smem = k_smem + KV_BYTES;
  const uint32_t q_smem = v_smem + KV_BYTES, do_smem = q_smem + STAGES * TILE_BYTES;
  const uint32_t ds_smem = do_smem + DO_STAGES * TILE_BYTES, dq_smem = ds_smem + DS_BUFFERS * DS_BYTES;
  const uint32_t lse_smem = dq_smem + WARPS * DQ_WARP_BYTES, delta_smem = lse_smem + STAGES * STAT_BYTES;
  const uint32_t edges_smem = delta_smem + DO_STAGES * STAT_BYTES;
  const uint32_t record_smem = edges_smem + EDGE_BYTES;          // [RECORDS][4]: kv head, first kv row, first tile, end
  const uint32_t q_full = record_smem + RECORDS * RECORD_BYTES, do_full = q_full + 8 * STAGES;
  const uint32_t through = do_full + 8 * DO_STAGES;              // everybody is through with the tile in the slot
  const uint32_t k_full = through + 8 * STAGES, v_full = k_full + 8, k_empty = v_full + 8, v_empty = k_empty + 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES + DO_STAGES; i++) mbar_init(q_full + 8 * i, 1);
    for (int i = 0; i < STAGES; i++) mbar_init(through + 8 * i, WARPS);
    mbar_init(k_full, 1); mbar_init(v_full, 1); mbar_init(k_empty, WARPS); mbar_init(v_empty, WARPS);
    mbar_init_done(); proxy_fence();
  }
  __syncthreads();

  const int warps = __shfl_sync(~0u, threadIdx.x >> 5, 0), w = warps >> 2, warp = warps & 3;
  const int lane = threadIdx.x & 31, lane0 = lane == 0;
  const int tiles = (p.seqlen + M - 1) / M;
  auto next_record = [&](uint32_t record) {
    return record == record_smem + (RECORDS - 1) * RECORD_BYTES ? record_smem : record + RECORD_BYTES;
  };

  if (w == 2) {
    regs_down<24>();
    if (warp == 0) {
      // LOADS
      const int kv_blocks = (p.seqlen + N - 1) / N, items = p.kv_heads * kv_blocks;
      int stage = 0, next = 1, do_stage = 0;
      uint32_t next_parity = 1, kv_parity = 1, record = record_smem;   // of `through`, of the slot after `stage`
      int index = __shfl_sync(~0u, counter_take_if(p.taken, lane0), 0);
#pragma unroll 1
      while (index < items) {
        const int kv_head = index / kv_blocks, kv0 = (index - kv_head * kv_blocks) * N;
        const int last = min(kv0 + N, p.seqlen) - 1;
        const int first = min(p.edges[2 * kv0], p.seqlen - 1) / M;
        const int end = max(first + 1, (p.edges[2 * last + 1] + M - 1) / M);
        sts_word_if(record, kv_head, lane0); sts_word_if(record + 4, kv0, lane0);
        sts_word_if(record + 8, first, lane0); sts_word_if(record + 12, end, lane0);
#pragma unroll 1
        for (int tile = first, head = kv_head * p.group, heads_end = head + p.group; head < heads_end;) {
          const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + do_stage * TILE_BYTES;
          const float* stat = p.stats + ((uint64_t)head * tiles + tile) * (2 * M);
          // everybody is through with the tile three before, whose q was here: waited for with do of the one before
          mbar_expect_if(q_full + 8 * stage, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
          for (int c = 0; c < PANELS; c++)
            tma_load_if(q_tile + c * TILE_PANEL, &q_map, c * 64, tile * M, head, q_full + 8 * stage, lane0);
          bulk_load_if(lse_smem + stage * STAT_BYTES, stat, STAT_BYTES, q_full + 8 * stage, lane0);
          mbar_wait(through + 8 * next, next_parity);            // everybody is through with the tile two before
          mbar_expect_if(do_full + 8 * do_stage, TILE_BYTES + STAT_BYTES, lane0);
#pragma unroll
          for (int c = 0; c < PANELS; c++)
            tma_load_if(do_tile + c * TILE_PANEL, &do_map, c * 64, tile * M, head, do_full + 8 * do_stage, lane0);
          bulk_load_if(delta_smem + do_stage * STAT_BYTES, stat + M, STAT_BYTES, do_full + 8 * do_stage, lane0);
          do_stage ^= 1; stage = next;
          if (++next == STAGES) next = 0, next_parity ^= 1;
          if (tile == first && head == kv_head * p.group) {
            mbar_wait(v_empty, kv_parity);
            mbar_expect_if(v_full, KV_BYTES, lane0);
#pragma unroll
            for (int c = 0; c < PANELS; c++)
              tma_load_if(v_smem + c * KV_PANEL, &v_map, c * 64, kv0, kv_head, v_full, lane0);
            mbar_wait(k_empty, kv_parity);
            mbar_expect_if(k_full, KV_BYTES + EDGE_BYTES, lane0);
#pragma unroll
            for (int c = 0; c < PANELS; c++)
              tma_load_if(k_smem + c * KV_PANEL, &k_map, c * 64, kv0, kv_head, k_full, lane0);
            bulk_load_if(edges_smem, p.edges + 2 * kv0, EDGE_BYTES, k_full, lane0);
          }
          if (++tile == end) tile = first, ++head;
        }
        kv_parity ^= 1; record = next_record(record);
        index = __shfl_sync(~0u, counter_take_if(p.taken, lane0), 0);
      }
      sts_word_if(record + 12, 0, lane0);                        // no tiles: no more items
      mbar_wait(k_empty, kv_parity);
      mbar_arrive_if(k_full, lane0);
    }
    return;
  }
  regs_up<240>();
  const int pair = 2 * (lane & 3);
  float s[32], dp[32], dk[D / 2], dv[D / 2]; uint32_t x[16];
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
    for (int i = 0; i < N / 16; i++) {
      const uint32_t a = desc_low(k_smem, KV_PANEL) + i * 128 + w * (KV_PANEL >> 4);
      MmaSS<64, 1, 1>::mma(dp, a, desc_low(ds_tile, DS_BYTES) + i * 128, i != 0);
    }
    wgmma_commit();
  };
  // query rows that see all of this warpgroup's kv rows
  int all_from = 0, all_to = 0;
  // P^T = 2^(S^T * scale - lse), 0 where the query row does not see the kv row
  auto make_p = [&](int tile, uint32_t lse) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 l = lds_float2(lse + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) s[4 * j + i] = exp2_approx(fmaf(s[4 * j + i], p.scale_log2, (i & 1) ? -l.y : -l.x));
    }
    if (tile * M < all_from || tile * M + M > all_to) {
      const uint32_t row = edges_smem + (64 * w + warp * 16 + (lane >> 2)) * 8;   // and the row 8 further
      int from[2]; uint32_t width[2];                            // query columns that see it, less this lane's first
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int begin = lds_word(row + 64 * r), end = lds_word(row + 64 * r + 4);
        from[r] = begin - tile * M - pair; width[r] = max(end - begin, 0);
      }
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int r = i >> 1 & 1, column = i / 4 * 8 + (i & 1);
        s[i] = (uint32_t)(column - from[r]) < width[r] ? s[i] : 0.f;
      }
    }
  };
  // dS^T = P^T (dP^T - delta), in place of dP^T
  auto make_ds = [&](uint32_t delta) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 d = lds_float2(delta + (8 * j + pair) * 4);
#pragma unroll
      for (int i = 0; i < 4; i++) dp[4 * j + i] = s[4 * j + i] * (dp[4 * j + i] - ((i & 1) ? d.y : d.x));
    }
  };
  auto store_ds = [&](uint32_t ds_tile) {
#pragma unroll
    for (int j = 1; j < 8; j += 2) store_matrices(swizzled(ds_tile, matrix_row, j - 1 + matrix_chunk), x + 2 * j - 2);
  };
  // this warp's piece of dQ^T into dq_smem, from there added to dq_sum while the next trip runs
  float* dq_out = nullptr;
  const uint32_t dq_warp = dq_smem + warps * DQ_WARP_BYTES;
  auto dq_to_memory = [&](int skipped) {                         // tiles of this head behind it that nobody here walks
    bulk_wait_read(); __syncwarp();                              // the reduction of the trip before has read dq_smem
#pragma unroll
    for (int j = 0; j < NQ / 4; j++)
      sts_float4(dq_warp + (j * 32 + lane) * 16, dp[4 * j], dp[4 * j + 1], dp[4 * j + 2], dp[4 * j + 3]);
    proxy_fence(); __syncwarp();
    bulk_add_if(dq_out, dq_warp, DQ_WARP_BYTES, lane0);
    bulk_commit();
    dq_out += (1 + skipped) * (M * D);
  };

  int stage = 0, next = 1, before = STAGES - 1, buffer = 0;
  uint32_t parity = 0, next_parity = 0, before_parity = 1;       // of the slots' barriers
  uint32_t do_stage = 0, do_parity = 0, kv_parity = 0, record = record_smem;
#pragma unroll 1
  while (true) {
    mbar_wait(k_full, kv_parity);
    uint32_t told[4];
    lds_words(told, record);                                     // kv head, first kv row, first tile, end
    const int first = told[2], end = told[3];
    if (end == 0) break;
    dq_out = p.dq_sum + ((uint64_t)told[0] * p.group * tiles + first) * (M * D) + warps * (NQ * 32);
    // both grow from row to row
    all_from = lds_word(edges_smem + (64 * w + 63) * 8); all_to = lds_word(edges_smem + 64 * w * 8 + 4);
    // FIRST SCORES
    zero(dk); zero(dv); touch(dk); touch(dv);
    mbar_wait(q_full + 8 * stage, parity);
    wgmma_fence(); issue_score(s, k_smem, q_smem + stage * TILE_BYTES); wgmma_wait<0>(); touch(s);
    make_p(first, lse_smem + stage * STAT_BYTES);
    mbar_wait(v_full, kv_parity); kv_parity ^= 1;

    int tile = first;
    auto after = [&](int tile) { return tile + 1 == end ? first : tile + 1; };
    auto finish = [&] {                                          // this warp is through with a trip
      __syncwarp(); mbar_arrive_if(through + 8 * stage, lane0);
      before = stage; before_parity = parity;
      stage = next; parity = next_parity;
      if (++next == STAGES) next = 0, next_parity ^= 1;
      do_parity ^= do_stage; do_stage ^= 1;
      buffer ^= 1; tile = after(tile);
    };
    const int trips = p.group * (end - first);
    auto trip = [&](bool is_first, bool is_last) {
      const bool more = is_first ? trips > 1 : !is_last;
      const uint32_t q_tile = q_smem + stage * TILE_BYTES, do_tile = do_smem + do_stage * TILE_BYTES;
      const uint32_t ds_tile = ds_smem + buffer * DS_BYTES;
      // ISSUE 1: dP and dV of this tile
      pack_rows(x, s); touch(x);
      mbar_wait(do_full + 8 * do_stage, do_parity);
      wgmma_fence(); issue_score(dp, v_smem, do_tile);
      issue_accumulate(dv, x, do_tile);
      wgmma_wait<1>(); touch(dp);
      if (is_last || (is_first && !more)) { __syncwarp(); mbar_arrive_if(v_empty, lane0); }
      // DS
      make_ds(delta_smem + do_stage * STAT_BYTES); touch(dp);
      // ISSUE 2: scores of the next (after an only tile of whatever lies there, not looked at), dQ of the tile before,
      // dK of this one
      if (!is_last) {
        if (more) mbar_wait(q_full + 8 * next, next_parity);
        wgmma_fence(); issue_score(s, k_smem, q_smem + next * TILE_BYTES);
        wgmma_wait<1>();
      } else wgmma_wait<0>();
      touch(dv); touch(x);                                       // dV has read P
      pack_rows(x, dp); touch(x);
      mbar_wait(through + 8 * before, before_parity);            // everybody is through with the trip before
      store_ds(ds_tile); proxy_fence();
      wgmma_fence();
      if (!is_first) issue_dq(ds_smem + (buffer ^ 1) * DS_BYTES);
      issue_accumulate(dk, x, q_tile);
      if (!is_last) { if (is_first) wgmma_wait<1>(); else wgmma_wait<2>(); touch(s); }
      // P OF NEXT
      if (more) make_p(after(tile), lse_smem + next * STAT_BYTES);
      // DQ OUT
      if (!is_first) { wgmma_wait<1>(); touch(dp); dq_to_memory(tile == first ? tiles - (end - first) : 0); }
      wgmma_wait<0>(); touch(dk); touch(x);
      finish();
    };
    trip(true, false);
#pragma unroll 1
    for (int left = trips - 2; left > 0; --left) trip(false, false);
    if (trips > 1) trip(false, true);

    // LAST DQ: everybody is through with the last trip
    mbar_wait(through + 8 * before, before_parity);
    wgmma_fence(); issue_dq(ds_smem + (buffer ^ 1) * DS_BYTES);
    wgmma_wait<0>(); touch(dp);
    __syncwarp(); mbar_arrive_if(k_empty, lane0);
    dq_to_memory(0);

    // STORE
    lds_words(told, record);
    const int l = lane_now(), row = told[1] + 64 * w + warp * 16 + (l >> 2);
    const uint64_t out = ((uint64_t)told[0] * p.seqlen + row) * D;
    store_rows(p.dv + out, D, dv, 1.f, row, p.seqlen, l);
    store_rows(p.dk + out, D, dk, p.scale, row, p.seqlen, l);
    record = next_record(record);
  }
  bulk_wait();                                                   // the last sums are in memory
}
