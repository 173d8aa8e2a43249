// Attention backward on Hopper (sm_90a), headdim 128, for sequences packed into one row: a block keeps the dk and dv of
// 128 kv rows in registers while it walks the query tiles of every head of q that these rows serve.
//
// Shapes   q, o, do, dq [B * H, S, 128], k, v, dk, dv [B * H_kv, S, 128] 16-bit floats, contiguous; lse [B * H, S]
//          float32, natural logarithm. T = ceil(S / 64) tiles of 64 query rows
//          seen [ceil(S / 128) * 128, 2] int: the query rows that see a kv row, from and to; none past S
//          stats [B * H, T, 2, 64] float32: log2(e) * lse, delta; past S +inf and 0, so that P and dS are 0
//          dq_sum [B * H, T, 64 * 128] float32, a tile in the order of the accumulators (DQ OUT)
//          k_smem, v_smem [128, D]   q_smem [3][64, D]   do_smem [2][64, D]   ds_smem [2][128, 64]
//          dq_smem 8 warps x 16 x 64 floats   seen_smem [128, 2]
//
//            one row of tokens: sequences A, B, C        one item = 128 kv rows of one head of k and v. Rows of two
//            queries →                                   sequences may lie in it: each kv row has its own
//   kv 0     │\A │   │   │   item 0: all of A, some B    first and last query row, and tiles need not begin where
//            │  \│ B │   │                               sequences do. Masks are made only in tiles that hold an
//   kv 128   │   │\  │   │   item 1: some of B, some C   edge for some of 64 rows. Then the same tiles of the next
//            │   │  \│ C │                               head of q: no dk or dv of single heads, no sum of them
//
// Trip     As in cuda_hopper_backward: S^T = K Q^T of tile i + 1 is ahead of dQ^T = K^T dS^T of tile i - 1 and of
//          dK += dS^T Q of tile i; dP^T = V dO^T and dV += P^T dO of tile i are issued together, dS is made under dV.
//          Two warpgroups of 64 kv rows each; dS of both meets in ds_smem; warpgroup w has D rows 64 w ... + 63 of dQ^T
// Regs     P and dS in 16 bits share 16, dP, dS and dQ 32: eight warps need 240, the loader's four have 24 each
// Items    taken by blocks that stay, from a counter, in the order of kv heads, then kv rows
// Phases   LOADS   FIRST SCORES   TRIP: ISSUE 1, DS, ISSUE 2, P OF NEXT, DQ OUT   LAST DQ   STORE
// Kernels  preprocess: seen, delta = rowsum(do * o), stats, dq_sum <- 0    backward    postprocess: dq = dq_sum * scale
// Bound    tensor cores: 10 D flops for each pair of query and key that see each other, at 4096 per clock and SM
// Measured NOTES.md
// Limits   sm_90a, D = 128. Sums of dq in no fixed order
// Check    python -m pytest tests/submissions/test_cuda_hopper_backward_packed.py
// build: -DBF16=0
// promise: smem_bytes=215456 registers=168 spills=0 warnings=0 blocks=1
// build: -DBF16=1
// promise: smem_bytes=215456 registers=168 spills=0 warnings=0 blocks=1
#include "sm90.cuh"

constexpr int D = 128, PANELS = D / 64;
constexpr int M = 64, N = 128;                           // query rows of a tile, kv rows of an item
constexpr int STAGES = 3, DO_STAGES = 2, DS_BUFFERS = 2; // tiles of q: in use, of the scores ahead, arriving; of do
constexpr int NQ = D / 4;                                // registers of dQ^T: 64 x 64 a warpgroup
constexpr uint32_t KV_BYTES = N * D * 2, TILE_BYTES = M * D * 2, DS_BYTES = N * M * 2;
constexpr uint32_t DQ_WARP_BYTES = NQ * 32 * 4, STAT_BYTES = M * 4, SEEN_BYTES = N * 8;
constexpr uint32_t KV_PANEL = N * 128, TILE_PANEL = M * 128;
constexpr int THREADS = 256, WARPS = 8;                  // that multiply
constexpr int ALL_THREADS = THREADS + 128;
constexpr int RECORDS = 4, RECORD_BYTES = 16;            // of items, by the warp that loads for those that multiply
constexpr int PASS_THREADS = 256;
constexpr int NOBODY = 1 << 30;                          // no query row sees a kv row from here on

struct Sequences {
  const int* begins;     // [count + 1] on the device: the token at which each begins, last the total; null: one
  int count;
  int causal;
};
struct Params {
  const int* seen;
  const float* stats;
  float* dq_sum;
  uint16_t* dk;
  uint16_t* dv;
  uint32_t* taken;       // items taken; zero before
  int seqlen;
  int kv_heads;          // batch * heads of k and v
  int group;             // heads of q that one of k and v serves
  float scale;           // softmax scale
  float scale_log2;      // the same times log2(e)
};

// ------------------------------------------------------------------------------------ before and after
// The query rows that see a kv row, by a binary search in `begins`.
__device__ __forceinline__ void store_seen(int* seen, int row, int S, const Sequences& of) {
  int from = NOBODY, to = 0;
  int low = 0, high = of.begins ? of.count : 1;          // the last sequence that begins at or before the row
  while (of.begins && low < high) {
    const int middle = (low + high + 1) / 2;
    if (of.begins[middle] <= row) low = middle; else high = middle - 1;
  }
  if (row < S && (!of.begins || low < of.count)) {
    to = of.begins ? min(of.begins[low + 1], S) : S;
    from = of.causal ? row : of.begins ? max(of.begins[low], 0) : 0;
  }
  seen[2 * row] = from; seen[2 * row + 1] = to;
}

// One block a tile of a head of q; those of head 0 store `seen` too.
extern "C" __global__ void __launch_bounds__(PASS_THREADS)
preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, int* seen, float* stats, float* dq_sum,
           uint32_t* taken, int S, Sequences of) {
  constexpr int LANES = D / 8, ROWS = PASS_THREADS / LANES;   // 16 bytes a lane
  if (blockIdx.x == 0 && threadIdx.x == 0) *taken = 0;
  const int tiles = (S + M - 1) / M, head = blockIdx.x / tiles, tile = blockIdx.x - head * tiles, row0 = tile * M;
  if (head == 0 && threadIdx.x < (tile == tiles - 1 && (tiles & 1) ? 2 * M : M))
    store_seen(seen, row0 + threadIdx.x, S, of);
  const uint64_t first = ((uint64_t)head * S + row0) * D + threadIdx.x % LANES * 8;
  float* stat = stats + (uint64_t)blockIdx.x * (2 * M);
#pragma unroll
  for (int r = 0; r < M; r += ROWS) {
    const int in_tile = r + threadIdx.x / LANES, row = row0 + in_tile;
    float sum = 0.f;
    if (row < S) {
      const uint4 a = *reinterpret_cast<const uint4*>(o + first + in_tile * D);
      const uint4 b = *reinterpret_cast<const uint4*>(d_o + first + in_tile * D);
      const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 u = unpack_half2(x[i]), v = unpack_half2(y[i]);
        sum = fmaf(u.x, v.x, sum); sum = fmaf(u.y, v.y, sum);
      }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % LANES == 0) {
      float l = infinity();
      if (row < S) { l = lse[(uint64_t)head * S + row] * 1.4426950408889634f; if (l == -infinity()) l = infinity(); }
      stat[in_tile] = l; stat[M + in_tile] = row < S ? sum : 0.f;
    }
  }
  float4* zero = reinterpret_cast<float4*>(dq_sum + (uint64_t)blockIdx.x * (M * D));
#pragma unroll
  for (int i = threadIdx.x; i < M * D / 4; i += PASS_THREADS) zero[i] = make_float4(0.f, 0.f, 0.f, 0.f);
}

extern "C" __global__ void __launch_bounds__(PASS_THREADS)
postprocess(const float* dq_sum, uint16_t* dq, float scale, int S) {
  constexpr int REGS = D / 4, PITCH = D + 8;                  // registers a lane held; halves from row to row
  SHARED_MEMORY(smem);
  uint16_t* out = reinterpret_cast<uint16_t*>(smem);          // [64][PITCH]
  const int tiles = (S + M - 1) / M, head = blockIdx.x / tiles, row0 = (blockIdx.x - head * tiles) * M;
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int d = 16 * (w & 3) + lane / 4 + 64 * (w / 4), q = 2 * (lane & 3);
  const float4* source = reinterpret_cast<const float4*>(dq_sum + (uint64_t)blockIdx.x * (M * D)) + w * REGS * 8 + lane;
#pragma unroll
  for (int j = 0; j < REGS / 4; j++) {
    const float4 x = source[j * 32];                          // D rows d and d + 8
    const uint32_t low = pack_half2(x.x * scale, x.y * scale), high = pack_half2(x.z * scale, x.w * scale);
    uint16_t* at = out + (q + 8 * j) * PITCH + d;
    at[0] = (uint16_t)low; at[PITCH] = (uint16_t)(low >> 16);
    at[8] = (uint16_t)high; at[PITCH + 8] = (uint16_t)(high >> 16);
  }
  __syncthreads();
  uint16_t* first = dq + ((uint64_t)head * S + row0) * D;
#pragma unroll
  for (int i = threadIdx.x; i < 8 * D; i += PASS_THREADS) {
    const int row = i / (D / 8), chunk = i % (D / 8) * 8;
    if (row0 + row < S)
      *reinterpret_cast<uint4*>(first + row * D + chunk) = *reinterpret_cast<const uint4*>(out + row * PITCH + chunk);
  }
}

// -------------------------------------------------------------------------------------- the main kernel
// 16-byte chunk of a row in a [rows, 64] panel with 128-byte swizzle
__device__ __forceinline__ uint32_t swizzled(uint32_t panel, int row, int chunk) {
  return panel + row * 128 + ((chunk ^ (row & 7)) << 4);
}
template <int N_> __device__ __forceinline__ void zero(float (&x)[N_]) {
#pragma unroll
  for (int i = 0; i < N_; i++) x[i] = 0.f;
}
template <int N_> __device__ __forceinline__ void pack_rows(uint32_t (&p)[N_ / 2], const float (&s)[N_]) {
#pragma unroll
  for (int i = 0; i < N_ / 2; i++) p[i] = pack_half2(s[2 * i], s[2 * i + 1]);
}
// x * by -> rows `row` and row + 8 of a head, those before S, 16 bytes a lane
__device__ __forceinline__ void store_rows(uint16_t* out, const float (&x)[D / 2], float by, int row, int S, int lane) {
#pragma unroll
  for (int j = 0; j < D / 2; j += 16) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint32_t y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) y[i] = pack_half2(x[j + 4 * i + 2 * r] * by, x[j + 4 * i + 2 * r + 1] * by);
      transpose_quad(y, lane);                                   // now a lane holds 8 adjacent columns of 32
      if (row + 8 * r < S)
        *reinterpret_cast<uint4*>(out + r * 8 * D + j * 2 + (lane & 3) * 8) = make_uint4(y[0], y[1], y[2], y[3]);
    }
  }
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
  const uint32_t seen_smem = delta_smem + DO_STAGES * STAT_BYTES;
  const uint32_t record_smem = seen_smem + SEEN_BYTES;           // [RECORDS][4]: kv head, first kv row, first tile, end
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
        const int first = min(p.seen[2 * kv0], p.seqlen - 1) / M;
        const int end = max(first + 1, (p.seen[2 * last + 1] + M - 1) / M);
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
            mbar_expect_if(k_full, KV_BYTES + SEEN_BYTES, lane0);
#pragma unroll
            for (int c = 0; c < PANELS; c++)
              tma_load_if(k_smem + c * KV_PANEL, &k_map, c * 64, kv0, kv_head, k_full, lane0);
            bulk_load_if(seen_smem, p.seen + 2 * kv0, SEEN_BYTES, k_full, lane0);
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
      const uint32_t row = seen_smem + (64 * w + warp * 16 + (lane >> 2)) * 8;   // and the row 8 further
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
    all_from = lds_word(seen_smem + (64 * w + 63) * 8); all_to = lds_word(seen_smem + 64 * w * 8 + 4);
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
    store_rows(p.dv + out, dv, 1.f, row, p.seqlen, l);
    store_rows(p.dk + out, dk, p.scale, row, p.seqlen, l);
    record = next_record(record);
  }
  bulk_wait();
}
