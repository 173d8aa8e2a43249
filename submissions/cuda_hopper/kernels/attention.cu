// Attention forward on Hopper (sm_90a): TMA feeds, wgmma multiplies, and the softmax keeps no running maximum where
// none is missed. The tiles and rules of steps/12_every_length.cu, in fewer instructions, and in an order for rows and
// heads that fill no whole block or section; each launch has its own work counter (submission.py), and q, k, v and o have
// strides, kv heads that groups of query heads share, lengths of their own, and fp16 or bf16.
//
//                 kv tiles, left to right →          one work item = 64 * WGS query rows of one head
//   warpgroup 0 ┌────┬────┬────┐                     first   exact maximum, it becomes ref
//   warpgroup 1 │ 1st│    │diag├────┐                plain   lazy: P = 2^(s - ref), no maximum, no rescaling; unmasked
//   warpgroup 2 │    │    │    │diag├────┐           diag    lazy, masked
//   warpgroup 3 └────┴────┴────┴────┴diag┘           right of its diagonal a warpgroup only hands slots back
//
// A warpgroup whose rows have few keys (IN_FULL tiles, one where the whole problem is short) is not lazy: every tile
// keeps a running maximum, and P counts in full, as half(P) and as what half rounds away. At headdim 256 a key that
// weighs much becomes ref, so that its P is exactly 1.
//
// Shapes   q, o  [batch, heads, seqlen_q, D], k, v  [batch, heads / group, seqlen_k, D], any strides but that of D,
//          lse  [batch, heads, seqlen_q] fp32 or null; one CTA per SM, persistent
//          -DPACKED=1: batch is 1, the row of tokens holds sequences; list_blocks lists their query blocks first
//          q_smem [SQ][WGS][64, D], its first 16 * Q_STEPS columns in registers too
//          k_smem, v_smem [SK, SV][N, D]   S [64, N], O [64, D] registers of a warpgroup
// Phases   LOAD (producer warp)   SCORE   SOFTMAX   ACCUMULATE   STORE
// Overflow a thread's partial row sum bounds all its P: sum <= N/4 + 32 proves that they fit fp16 and that no P is far
//          above 1. Rows that outgrow it (headdim 256: each time), or whose first tile shows wide logits, keep a
//          running maximum. If a P overflowed even fp32, l is inf or NaN for good, and the item is done again with one.
// Bound    2 B H S^2 D flops (causal) at 4096 per clock and SM; headdim 128 and 256 are held by the tensor cores at the
//          clock that 700 W allow, headdim 64 by them and the exponentials together
// Measured NOTES.md, "The board", "Every length", "Profile"; NVIDIA H200
// Limits   sm_90a, fp16 or bf16 (-DBF16=1), D = 64, 128 or 256, seqlen_q <= seqlen_k where causal, one launch at a time
//          per counter
// Run      python run.py --submission cuda_hopper
//
// build: -DHEADDIM=64
// promise: smem_bytes=114952 registers=96 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=64 -DBF16=1
// promise: smem_bytes=114952 registers=96 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128
// promise: smem_bytes=229640 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DBF16=1
// promise: smem_bytes=229640 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DFULL_ONLY=1
// promise: smem_bytes=196776 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DFULL_ONLY=1 -DBF16=1
// promise: smem_bytes=196776 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=256
// promise: smem_bytes=229512 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=256 -DBF16=1
// promise: smem_bytes=229512 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=64 -DPACKED=1
// promise: smem_bytes=114984 registers=96 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=64 -DPACKED=1 -DBF16=1
// promise: smem_bytes=114984 registers=96 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DPACKED=1
// promise: smem_bytes=229672 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DPACKED=1 -DBF16=1
// promise: smem_bytes=229672 registers=128 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DFULL_ONLY=1 -DPACKED=1
// promise: smem_bytes=196808 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=128 -DFULL_ONLY=1 -DPACKED=1 -DBF16=1
// promise: smem_bytes=196808 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=256 -DPACKED=1
// promise: smem_bytes=229544 registers=168 spills=0 warnings=0 blocks=1
// build: -DHEADDIM=256 -DPACKED=1 -DBF16=1
// promise: smem_bytes=229544 registers=168 spills=0 warnings=0 blocks=1
#include "sm90.cuh"

constexpr float P_FLAT = 0.02f;       // a thread's sum of the first tile's P below this: wide logits, a running maximum
constexpr float RISE = 2.5f;          // in usual sums of a thread: a larger one holds a heavy key in a short problem
constexpr float LN2 = 0.69314718f;
constexpr int SAFE = 1 << 30;         // flag in an item's row word: redo with the running maximum

// N, WGS        kv rows per tile; consumer warpgroups of 64 query rows.   SK, SV, SQ   stages of K, V and Q
// Q_STEPS       so many k-steps of 16 columns take Q from registers
// WAIT_K_FIRST  where a trip waits for K; BOUNDARY where it waits for V
// SHORT_LAST    the shortest items of a causal problem come last
// IN_TURN       the items of full attention, all equal, go to the CTAs in turn, without a queue: neighbours stay in
//               step, and L2 sends what both ask for once
// SHORT         a problem of no more keys is short
// IN_FULL       rows of so many tiles count P in full; in a short problem rows of one tile, which weigh most
// HEAVY         from which weight on a key becomes the reference, in units of 1 / (4 sqrt(tiles)), 0.2 / sqrt(tiles)
//               being the root of the sum of all squared weights at usual inputs (0: not before P_LIMIT, a rise takes
//               more time there than it is worth). By it alone, nearly every trip of a short problem would rise: RISE
template <int D, bool FULL> struct Shape;
template <bool FULL> struct Shape<64, FULL> {
  static constexpr int N = 64, WGS = 4, SK = 3, SV = 3, SQ = 2, Q_STEPS = 0, SHORT = 2048, IN_FULL = 4;
  static constexpr bool WAIT_K_FIRST = true, BOUNDARY = false, SHORT_LAST = false, IN_TURN = false;
  static constexpr float HEAVY = 0.f;
};
template <> struct Shape<128, false> {
  static constexpr int N = 64, WGS = 3, SK = 4, SV = 4, SQ = 2, Q_STEPS = 5, SHORT = 2048, IN_FULL = 3;
  static constexpr bool WAIT_K_FIRST = false, BOUNDARY = true, SHORT_LAST = true, IN_TURN = true;
  static constexpr float HEAVY = 0.f;
};
template <> struct Shape<128, true> {   // full attention: less padding, and items that fill the last wave better
  static constexpr int N = 128, WGS = 2, SK = 2, SV = 2, SQ = 2, Q_STEPS = 0, SHORT = 2048, IN_FULL = 1;
  static constexpr bool WAIT_K_FIRST = true, BOUNDARY = true, SHORT_LAST = false, IN_TURN = true;
  static constexpr float HEAVY = 0.f;
};
template <bool FULL> struct Shape<256, FULL> {
  static constexpr int N = 80, WGS = 2, SK = 2, SV = 2, SQ = 1, Q_STEPS = 5, SHORT = 4096, IN_FULL = 6;
  static constexpr bool WAIT_K_FIRST = true, BOUNDARY = true, SHORT_LAST = false, IN_TURN = true;
  static constexpr float HEAVY = 0.3f;
};

struct Stage { int i; uint32_t parity; };   // of K and V, and the parity of the phase that fills it
template <int n, int all> __device__ __forceinline__ float (&first(float (&r)[all]))[n] {   // registers of r
  return reinterpret_cast<float (&)[n]>(r);
}
struct Divisor { uint32_t times, shift; };   // n / d = n * times >> shift for n < 2^31; a division takes 150 clocks
__device__ __forceinline__ int divide(int n, Divisor d) { return (int)((uint64_t)(uint32_t)n * d.times >> d.shift); }

struct Problem {                        // what a launch is given beside its tensor maps
  uint16_t* o;                          // [batch, heads, seqlen_q, D], the last contiguous
  float* lse;                           // [batch, heads, seqlen_q] contiguous, or null
  int* counter;                         // [2], next item and CTAs that are done; both 0 before and after a launch
  uint64_t o_batch, o_head, o_row;      // strides of o in elements
  Divisor by_heads, by_group;           // by the fields below
  int batch, heads, group;              // query heads; so many of them, next to each other, read one head of K and V
  int seqlen_q, seqlen_k, causal;
  int reach;                            // query row i sees the keys before 1 + i + reach: seqlen_k - seqlen_q or,
                                        // where all see all, seqlen_k
  int section;                          // query heads per section; the kernel takes the power of two below
  float scale_log2;
  const int4* list;                     // packed: what list_blocks wrote; else null
};

template <int D, bool FULL, bool LISTED>
__device__ __forceinline__ void attend(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                       const Problem& problem) {
  using Tile = Shape<D, FULL>;
  constexpr int N = Tile::N, WGS = Tile::WGS, M = 64 * WGS, SK = Tile::SK, SV = Tile::SV, SQ = Tile::SQ;
  constexpr bool WAIT_K_FIRST = Tile::WAIT_K_FIRST, BOUNDARY = Tile::BOUNDARY;
  constexpr bool SHORT_LAST = Tile::SHORT_LAST && !LISTED;   // packed: the list is in order
  constexpr int Q_STEPS = Tile::Q_STEPS, TILE_BYTES = N * D * 2, Q_BYTES = 64 * D * 2;
  constexpr float HEAVY = Tile::HEAVY;
  constexpr int SHIFT = LISTED ? 0 : M;                        // a row word holds first row + SHIFT, never below 0
  constexpr bool NARROW = N == 80 && !LISTED;   // other tiles divide 64 rows and usual lengths; packed, ptxas refuses
  constexpr int PRODUCER_REGS = WGS == 2 ? 24 : 32, CONSUMER_REGS = WGS == 2 ? 240 : WGS == 3 ? 160 : 112;
  // with one stage of Q the next item's comes as soon as the last scores are there; with two it came long before
  constexpr bool Q_BACK_AT_ONCE = SQ == 1;
  const int seqlen_q = problem.seqlen_q, seqlen_k = problem.seqlen_k, causal = problem.causal, reach = problem.reach;
  const int section_log2 = 31 - __clz(problem.section), blocks = LISTED ? problem.list[0].x : (seqlen_q + M - 1) / M;
  const int heads = problem.batch * problem.heads;
  const int padded = (heads + (1 << section_log2) - 1) >> section_log2 << section_log2;   // heads, whole sections
  const int items = padded * blocks;
  const int void_heads = padded - heads;                      // of the first section: the last one must fill all SMs
  // where causal rows do not fill the blocks, the first block, which has the fewest keys, begins so many rows early
  const int early = causal ? blocks * M - seqlen_q : 0;
  // so many of the shortest blocks of all heads come last, their K and V no more than a section's; items before them:
  const int last_blocks = SHORT_LAST && causal ? (unsigned)(blocks << section_log2) / (unsigned)padded : 0;
  const int by_section = padded * (blocks - last_blocks);
  extern __shared__ __align__(1024) uint8_t smem[];
  // where dynamic shared memory begins: known here, addresses are immediates (packed, two registers are too few)
  const uint32_t base = LISTED ? smem_u32(smem) : 1024;
  if (smem_u32(smem) != base || base & 1023) __trap();
  const uint32_t q_smem = base, k_smem = q_smem + SQ * WGS * Q_BYTES, v_smem = k_smem + SK * TILE_BYTES;
  const uint32_t k_full = v_smem + SV * TILE_BYTES, k_empty = k_full + 8 * SK;
  const uint32_t v_full = k_empty + 8 * SK, v_empty = v_full + 8 * SV;
  const uint32_t q_full = v_empty + 8 * SV, q_empty = q_full + 8 * WGS * SQ;
  const uint32_t done = q_empty + 8 * WGS * SQ;               // [2] all warps finished item i (barrier i % 2)
  // In every warp only lane 0 touches these words and flags (lds_lane0): its arrival on done[] follows all accesses.
  const uint32_t item_smem = done + 16;                       // [2] x {batch << 16 | head or -1, first row | SAFE} of item i
  const uint32_t redo_smem = item_smem + 16;                  // [2] item i overflowed
  const uint32_t block_smem = redo_smem + 8;                  // packed: [2] the list's entry of item i
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);       // warp-uniform; straight from threadIdx it spills
  if (threadIdx.x == 0) {
    for (int i = 0; i < SK; i++) { mbar_init(k_full + 8 * i, 1); mbar_init(k_empty + 8 * i, 4 * WGS); }
    for (int i = 0; i < SV; i++) { mbar_init(v_full + 8 * i, 1); mbar_init(v_empty + 8 * i, 4 * WGS); }
    for (int i = 0; i < WGS * SQ; i++) { mbar_init(q_full + 8 * i, 1); mbar_init(q_empty + 8 * i, 4); }
    for (int i = 0; i < 2; i++) { mbar_init(done + 8 * i, 4 * WGS); sts_if(redo_smem + 4 * i, 0, 1); }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); proxy_fence();
  }
  __syncthreads();

  if (wg == 0) {
    // ----------------------------------------------------------------------------------- producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGS));
    if (__shfl_sync(~0u, threadIdx.x >> 5, 0) == 0) {
      // One converged warp walks the loop and lane 0 acts, by predicates inside the asm.
      const int leader = (threadIdx.x & 31) == 0;
      int ks = 0, vs = 0, qs = 0, last_v_row = -1, last_v_at = 0, redo_slot = -1, item = 0, verified = 0;
      int fetched = (int)blockIdx.x - (int)gridDim.x;
      uint32_t kp = 1, vp = 1, qp = 1;
      // at: batch << 16 | head of K and V
      auto fill = [&](const TensorMap* map, uint32_t dst, uint32_t full, int row, int at) {
        mbar_expect_if(full, TILE_BYTES, leader);
#pragma unroll
        for (int c = 0; c < D / 64; c++)
          tma_load_4d_if(dst + c * N * 128, map, c * 64, row, at & 0xffff, at >> 16, full, leader);
      };
      auto put_k = [&](int row, int at) {
        mbar_wait(k_empty + 8 * ks, kp); fill(&k_map, k_smem + ks * TILE_BYTES, k_full + 8 * ks, row, at);
        if (++ks == SK) ks = 0, kp ^= 1;
      };
      auto put_v = [&](int row, int at) {
        mbar_wait(v_empty + 8 * vs, vp); fill(&v_map, v_smem + vs * TILE_BYTES, v_full + 8 * vs, row, at);
        if (++vs == SV) vs = 0, vp ^= 1;
      };
      // waits for the end of item i; if a P overflowed there, the item comes next once more, in safe mode
      auto verify = [&](int i) {
        const int s = i & 1;
        mbar_wait(done + 8 * s, (i >> 1) & 1);
        if (lds_lane0(redo_smem + 4 * s, leader)) { redo_slot = s; sts_if(redo_smem + 4 * s, 0, leader); }
        verified = i + 1;
      };
#pragma unroll 1
      while (true) {
        int at, row_word; int4 of_list = {0, 0, 0, 0};
        const int index = __shfl_sync(~0u, fetched, 0) + gridDim.x;
        if (redo_slot < 0 && index >= items) {                  // nothing left but the last item's verdict
          if (last_v_row >= 0) put_v(last_v_row, last_v_at);
          last_v_row = -1;
          if (verified < item) verify(item - 1);
          if (redo_slot < 0) break;
        }
        if (redo_slot >= 0) {
          at = lds_lane0(item_smem + 8 * redo_slot, leader);
          row_word = lds_lane0(item_smem + 8 * redo_slot + 4, leader) | SAFE;
          if constexpr (LISTED) of_list = lds_int4_lane0(block_smem + 16 * redo_slot, leader);
          redo_slot = -1;
        } else {
          // longest query blocks first within a section of heads, then the last ones of all heads
          int block, head;
          if (!SHORT_LAST || index < by_section) {
            const int group = index >> section_log2, each = blocks - last_blocks;
            const int section = (unsigned)group / (unsigned)each;
            block = group - section * each; head = (section << section_log2) + (index & ((1 << section_log2) - 1));
          } else {
            const int rest = index - by_section, row_of_items = (unsigned)rest / (unsigned)padded;
            block = blocks - last_blocks + row_of_items; head = rest - row_of_items * padded;
          }
          if constexpr (LISTED) { of_list = problem.list[1 + block]; row_word = 0; }   // a problem of its own
          else row_word = (causal ? blocks - 1 - block : block) * M - early + SHIFT;
          head -= void_heads;
          const int batch = divide(max(head, 0), problem.by_heads);
          at = head >= 0 ? batch << 16 | (head - batch * problem.heads) : -1;
        }
        if (at >= 0) {                                            // else it only fills up the first section
          const int begin = LISTED ? of_list.z : 0;                // of K and V
          const int first_row = LISTED ? of_list.x : (row_word & ~SAFE) - SHIFT;
          const int end = LISTED ? begin + (causal ? min(M + of_list.w - of_list.y, of_list.w) : of_list.w)
                                 : min(first_row + M + reach, seqlen_k);
          const int at_kv = (at & ~0xffff) | divide(at & 0xffff, problem.by_group);
          put_k(begin, at_kv); if (last_v_row >= 0) put_v(last_v_row, last_v_at);
          sts_if(item_smem + 8 * (item & 1), at, leader); sts_if(item_smem + 8 * (item & 1) + 4, row_word, leader);
          if constexpr (LISTED) sts_int4_if(block_smem + 16 * (item & 1), of_list, leader);
#pragma unroll 1
          for (int w = 0; w < WGS; w++) {
            const int slot = w * SQ + qs;
            mbar_wait(q_empty + 8 * slot, qp);
            mbar_expect_if(q_full + 8 * slot, Q_BYTES, leader);
#pragma unroll
            for (int c = 0; c < D / 64; c++)
              tma_load_4d_if(q_smem + (qs * WGS + w) * Q_BYTES + c * 8192, &q_map, c * 64, first_row + w * 64, at & 0xffff,
                          at >> 16, q_full + 8 * slot, leader);
          }
          if (++qs == SQ) qs = 0, qp ^= 1;
          int row = begin + N;
#pragma unroll 1
          for (; row < end; row += N) { put_k(row, at_kv); put_v(row - N, at_kv); }
          last_v_row = row - N; last_v_at = at_kv;
          item++;
        }
        // All tiles of the item are asked for; the consumers still have a stage or two to do, which hides the latency.
        // An item that is done again did not use up its number.
        if (causal || LISTED || !Tile::IN_TURN) atomic_next_if(fetched, problem.counter, leader & (row_word < SAFE));
        else if (row_word < SAFE) fetched = index;
        if (verified < item - 1) verify(item - 2);
      }
      sts_if(item_smem + 8 * (item & 1), -1, leader);             // tell the consumers to stop
#pragma unroll 1
      for (int w = 0; w < WGS; w++) {
        mbar_wait(q_empty + 8 * (w * SQ + qs), qp); mbar_arrive_if(q_full + 8 * (w * SQ + qs), leader);
      }
      if (leader) {                                               // the last CTA leaves the counters as it found them
        __threadfence();
        if (atomicAdd(problem.counter + 1, 1) == (int)gridDim.x - 1) { problem.counter[0] = 0; problem.counter[1] = 0; }
      }
    }
  } else {
    // ---------------------------------------------------------------------------------- consumers
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGS));
    constexpr int NS = N / 2, NO = D / 2, NP = N / 4;
    // A thread's sum of a tile's P that the reference passes with: as if all were 1, and one of 32: each P fits fp16.
    constexpr float P_LIMIT = N / 4 + 32;
    float S[NS], O[NO]; uint32_t P[NP], Q[Q_STEPS ? 4 * Q_STEPS : 1];
    const int w = wg - 1, lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int lane0 = lane == 0;
    static_assert(SK == SV, "V of a tile lies in the stage of its K");
    int qs = 0; uint32_t qp = 0; Stage k = {0, 0}, next_k = {0, 0}, v = {0, 0};
    auto wait_k = [&] {
      mbar_wait(k_full + 8 * next_k.i, next_k.parity); k = next_k;
      next_k.i = k.i + 1 == SK ? 0 : k.i + 1; next_k.parity ^= (next_k.i == 0);
    };
    auto wait_v = [&] { mbar_wait(v_full + 8 * v.i, v.parity); };
    auto release = [&](uint32_t bar) { mbar_arrive_if(bar, lane0); };
    auto pass_turn = [&] { named_arrive(1 + (w + 1 == WGS ? 0 : w + 1)); };
    float m0, m1, l0, l1;                                // rows lane/4 and lane/4 + 8 of the warp's 16; m in log2 units
    const float scale = problem.scale_log2 == 0.f ? 1e-30f : problem.scale_log2;  // 0 * -inf would be NaN

    // S <- Q K^T of the tile's first n keys
    auto issue_qk = [&](uint32_t q_desc, int n) {
      const uint32_t k_desc = desc_low(k_smem, 16) + k.i * (TILE_BYTES >> 4);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        const uint32_t k_now = k_desc + (i & 3) * 2 + (i >> 2) * (N * 8);
        const uint32_t q_now = q_desc + (i & 3) * 2 + (i >> 2) * 512;
        if (n == N) i < Q_STEPS ? QKFromRegisters<N>::mma(S, Q + 4 * i, k_now, i != 0)
                                : QK<N>::mma(S, q_now, k_now, i != 0);
        else if (n == 48) i < Q_STEPS ? QKFromRegisters<48>::mma(first<24>(S), Q + 4 * i, k_now, i != 0)
                                      : QK<48>::mma(first<24>(S), q_now, k_now, i != 0);
        else i < Q_STEPS ? QKFromRegisters<16>::mma(first<8>(S), Q + 4 * i, k_now, i != 0)
                         : QK<16>::mma(first<8>(S), q_now, k_now, i != 0);
      }
      wgmma_commit();
    };
    auto issue_pv = [&](int n) {
      const uint32_t v_desc = desc_low(v_smem, N * 128) + v.i * (TILE_BYTES >> 4);
#pragma unroll
      for (int i = 0; i < n / 16; i++) PV<D>::mma(O, P + 4 * i, v_desc + i * 128);
      wgmma_commit();
    };
    // x <- the largest of x and sign * S in each row
    auto row_max = [&](float& x0, float& x1, float sign) {
#pragma unroll
      for (int i = 0; i < NS; i += 4) {
        x0 = fmaxf(x0, fmaxf(sign * S[i], sign * S[i + 1])); x1 = fmaxf(x1, fmaxf(sign * S[i + 2], sign * S[i + 3]));
      }
      x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, 1)); x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, 2));
      x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, 1)); x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, 2));
    };
    auto row_sum = [&](float& x0, float& x1) {
      x0 = S[0] + S[1]; x1 = S[2] + S[3];
#pragma unroll
      for (int i = 4; i < NS; i += 4) { x0 += S[i] + S[i + 1]; x1 += S[i + 2] + S[i + 3]; }
    };
    auto quad_sum = [&](float x) { x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2); };
    auto pack_p = [&] {
#pragma unroll
      for (int i = 0; i < NP; i++) P[i] = pack_two(S[2 * i], S[2 * i + 1]);
    };
    // O += (P - half(P)) V: with it, and with P V to come, P counts in full
    auto add_rest = [&] {
#pragma unroll
      for (int i = 0; i < NP; i++) P[i] = pack_rest(S[2 * i], S[2 * i + 1]);
      touch(P);
      wait_v(); wgmma_fence(); issue_pv(N); wgmma_wait<0>(); touch(O);
    };
    auto scale_o = [&](float a0, float a1) {
#pragma unroll
      for (int i = 0; i < NO; i++) O[i] *= (i & 2) ? a1 : a0;
    };
    // S <- -inf right of the diagonal and past the end (times the sign of the scale)
    auto mask = [&](int tile, int limit0, int limit1) {
      limit0 -= tile * N; limit1 -= tile * N;
      const float off = scale < 0.f ? __int_as_float(0x7f800000) : -__int_as_float(0x7f800000);
#pragma unroll
      for (int i = 0; i < NS; i++) S[i] = (i / 4 * 8 + (i & 1) > ((i & 2) ? limit1 : limit0)) ? off : S[i];
    };
    // S <- 2^(S * scale - m), m the running maximum; a0, a1: the rise of m, as the factor for what was summed before
    auto running_softmax = [&](float& a0, float& a1) {
      float x0 = -__int_as_float(0x7f800000), x1 = x0;
      if (scale > 0.f) row_max(x0, x1, 1.f); else row_max(x0, x1, -1.f);
      x0 = fmaxf(m0, x0 * fabsf(scale)); x1 = fmaxf(m1, x1 * fabsf(scale));
      a0 = exp2_approx(m0 - x0); a1 = exp2_approx(m1 - x1); m0 = x0; m1 = x1;
#pragma unroll
      for (int i = 0; i < NS; i++) S[i] = exp2_approx(fmaf(S[i], scale, (i & 2) ? -m1 : -m0));
    };

    if (w == 0) named_arrive(1);                          // warpgroup 0 issues first
#pragma unroll 1
    for (int item = 0;; item ^= 1) {
      const int slot = w * SQ + qs;
      mbar_wait(q_full + 8 * slot, qp);
      const int at = lds_lane0(item_smem + 8 * item, lane0), row_word = lds_lane0(item_smem + 8 * item + 4, lane0);
      if (at < 0) break;
      const int rows = LISTED ? lds_lane0(block_smem + 16 * item + 4, lane0) : seqlen_q;
      const int keys = LISTED ? lds_lane0(block_smem + 16 * item + 12, lane0) : seqlen_k;
      const int far = !LISTED ? reach : causal ? keys - rows : keys;
      const uint32_t q_desc = desc_low(q_smem, 16) + (qs * WGS + w) * (Q_BYTES >> 4);
      if constexpr (Q_STEPS > 0) {                  // Q [16, 16 * Q_STEPS] of this warp, out of the 128-byte swizzle
        const int q_row = warp * 16 + (lane & 15);
        const uint32_t row_smem = q_smem + (qs * WGS + w) * Q_BYTES + q_row * 128;
#pragma unroll
        for (int i = 0; i < Q_STEPS; i++)
          ldmatrix_x4(Q + 4 * i, row_smem + (i >> 2) * 8192 + ((((i & 3) * 2 + (lane >> 4)) ^ (q_row & 7)) << 4));
        touch(Q);
      }
      const int r0 = (row_word & ~SAFE) - SHIFT + w * 64;         // this warpgroup's rows r0 ... r0 + 63
      const int row = r0 + warp * 16 + (lane >> 2);               // this thread's rows: row and row + 8
      const int limit0 = min(row + far, keys - 1) - 2 * (lane & 3);       // last valid kv row,
      const int limit1 = min(row + 8 + far, keys - 1) - 2 * (lane & 3);   // less this lane's column
      // kv tiles: [0, full) need no mask in any of the 64 rows, [full, mine) do, [mine, all) only later warpgroups need
      const int all = (min((row_word & ~SAFE) - SHIFT + M + far, keys) - 1) / N + 1;
      const bool has_rows = r0 < rows && r0 > -64;
      const int mine = has_rows ? (min(r0 + 64 + far, keys) - 1) / N + 1 : 1;
      const int full = min(r0 + 1 + far, keys) / N;

      // keys of the last tile that one of the 64 rows sees: where they are few, its products are narrower
      const int rest = min(r0 + 64 + far, keys) - (mine - 1) * N;
      const int narrow = rest <= 48 ? mine - 1 : -1;

      // first tile: nothing to overlap with inside this warpgroup
      wait_k();
      v = k;
      wgmma_fence(); issue_qk(q_desc, N); wgmma_wait<0>(); touch(S); release(k_empty + 8 * k.i);
      if (Q_BACK_AT_ONCE && mine == 1) release(q_empty + 8 * slot);
      if (full <= 0) mask(0, limit0, limit1);
      { m0 = m1 = -1e30f; l0 = l1 = 0.f; float a0, a1; running_softmax(a0, a1); row_sum(l0, l1); }
#pragma unroll
      for (int i = 0; i < NO; i++) O[i] = 0.f;
      // few keys: here the rounding of P would be half of the error
      const bool in_full = mine <= (keys <= Tile::SHORT ? 1 : Tile::IN_FULL);
      if (in_full) add_rest();
      pack_p(); touch(P);
      if (!WAIT_K_FIRST && mine > 1) wait_k();

      // QK of this tile and PV of the one before are in flight together; QK is complete on return
      int tile = 1;
      // the reference is kept while no thread's sum of a tile's P passes these; below 0 it is the running maximum
      float up0 = P_LIMIT, up1 = P_LIMIT;
      if constexpr (HEAVY > 0.f) {                  // in units of a thread's usual sum: a heavy key, half of the others
        const float least = keys <= Tile::SHORT ? RISE : 0.f;
        const float grow = 0.25f * fmaxf(least, fmaf(HEAVY, sqrtf((float)mine), 0.5f));
        up0 = fminf(quad_sum(l0) * grow, P_LIMIT); up1 = fminf(quad_sum(l1) * grow, P_LIMIT);
      }
      if (__any_sync(~0u, fminf(l0, l1) < P_FLAT)) up0 = up1 = -1.f;
      auto issue = [&] {
        if (WAIT_K_FIRST) wait_k();
        named_sync(1 + w);
        auto products = [&](int n) {
          wgmma_fence(); issue_qk(q_desc, n);
          wait_v(); wgmma_fence(); issue_pv(N);
          pass_turn();
          wgmma_wait<1>(); touch(S);
        };
        if (NARROW && tile == narrow) { if (rest <= 16) products(16); else products(48); }
        else products(N);
        release(k_empty + 8 * k.i);
        if (Q_BACK_AT_ONCE) mbar_arrive_if(q_empty + 8 * slot, lane0 & (tile + 1 == mine));
      };
      auto finish_pv = [&](int more) {
        const Stage now = k;
        // ptxas moves the exps below the wait for PV unless a basic block ends here; a spin ends one
        if (!WAIT_K_FIRST) { if (more) wait_k(); }
        else if (BOUNDARY) wait_v();                              // this V came long ago
        wgmma_wait<0>(); touch(O); release(v_empty + 8 * v.i);
        v = now;
      };
      if (in_full || (row_word & SAFE)) {
#pragma unroll 1
        for (; tile < mine; ++tile) {
          issue();
          if (tile >= full) mask(tile, limit0, limit1);
          float a0, a1, s0 = 0.f, s1 = 0.f;
          running_softmax(a0, a1); row_sum(s0, s1);
          finish_pv(tile + 1 < mine);
          l0 = l0 * a0 + s0; l1 = l1 * a1 + s1;
          if (__any_sync(~0u, (a0 != 1.f) | (a1 != 1.f))) scale_o(a0, a1);
          if (in_full) add_rest();
          pack_p(); touch(P);
        }
      }
      // m rises to the maximum so far, whose P is then exactly 1; a0, a1 are for what was summed before
      auto rise = [&](float& s0, float& s1, float& a0, float& a1) {
        float x0 = 1.f, x1 = 1.f; row_max(x0, x1, 1.f);
        a0 = rcp_or_nan(x0); a1 = rcp_or_nan(x1);
        m0 += log2_approx(x0); m1 += log2_approx(x1); s0 *= a0; s1 *= a1; l0 *= a0; l1 *= a1;
        if (HEAVY > 0.f) { up0 *= a0; up1 *= a1; }
        else up0 = up1 = -1.f;                            // a row that outgrew P_LIMIT will do so again: every tile
#pragma unroll
        for (int i = 0; i < NS; i++) S[i] *= (i & 2) ? a1 : a0;
      };
#pragma unroll 1
      for (; tile < mine; ++tile) {
        // Lazy softmax: m stays at the maximum of the first tile. Every P of a thread is <= its partial row sum,
        // so a sum <= P_LIMIT proves that all of them fit fp16 (the comparison is also false for NaN and inf).
        issue();
        if (tile >= full) mask(tile, limit0, limit1);
        float s0 = 0.f, s1 = 0.f, a0 = 1.f, a1 = 1.f;
#pragma unroll
        for (int i = 0; i < NS; i++) S[i] = exp2_approx(fmaf(S[i], scale, (i & 2) ? -m1 : -m0));
        row_sum(s0, s1);
        if constexpr (HEAVY > 0.f) {                      // rises are common: most of one comes before the wait for PV
          const bool heavy = __any_sync(~0u, !(s0 <= up0) | !(s1 <= up1));
          if (heavy) rise(s0, s1, a0, a1);
          finish_pv(tile + 1 < mine);
          if (heavy) scale_o(a0, a1);
          pack_p(); touch(P);
        } else {
          finish_pv(tile + 1 < mine); pack_p(); touch(P);
          if (__any_sync(~0u, !(s0 <= up0) | !(s1 <= up1))) { rise(s0, s1, a0, a1); scale_o(a0, a1); pack_p(); }
        }
        l0 += s0; l1 += s1;
      }
      if (!Q_BACK_AT_ONCE) release(q_empty + 8 * slot);           // the next item's Q may come
      if (++qs == SQ) qs = 0, qp ^= 1;
      wait_v();
      auto last_pv = [&](int n) { wgmma_fence(); issue_pv(n); };
      if (!NARROW || rest > 64) last_pv(N);
      else if (rest > 48) last_pv(64);
      else if (rest > 32) last_pv(48);
      else if (rest > 16) last_pv(32);
      else last_pv(16);
      // tiles that only later warpgroups need: take part in the ring, hand the slots back
#pragma unroll 1
      for (int i = mine; i < all; i++) {
        wait_k(); named_sync(1 + w); pass_turn(); release(k_empty + 8 * k.i);
        wgmma_wait<0>(); release(v_empty + 8 * v.i); v = k; wait_v();
      }
      wgmma_wait<0>(); touch(O); release(v_empty + 8 * v.i);

      // epilogue, each warp alone
      l0 = quad_sum(l0); l1 = quad_sum(l1);
      // a P that overflowed fp32 made its row sum inf or NaN for good: the whole item is done again in safe mode
      if (__any_sync(~0u, !(l0 < 1e38f) | !(l1 < 1e38f)) && !(row_word & SAFE)) sts_if(redo_smem + 4 * item, 1, lane0);
      else {
        const float r0_ = rcp_approx(l0), r1_ = rcp_approx(l1);
        const int batch = at >> 16, head = at & 0xffff;
        const int to = row + (LISTED ? lds_lane0(block_smem + 16 * item, lane0) : 0);   // row of o
        uint16_t* o = problem.o + batch * problem.o_batch + head * problem.o_head + to * problem.o_row + (lane & 3) * 8;
        if (problem.lse && (lane & 3) == 0) {
          float* row_lse = problem.lse + (uint64_t)(batch * problem.heads + head) * seqlen_q + to;
          if ((unsigned)row < (unsigned)rows) row_lse[0] = LN2 * (m0 + log2_approx(l0));
          if ((unsigned)(row + 8) < (unsigned)rows) row_lse[8] = LN2 * (m1 + log2_approx(l1));
        }
#pragma unroll
        for (int j = 0; j < NO; j += 16) {                        // 32 columns: 4 lanes hold 4 x 2 each of two rows
          uint32_t x[4], y[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            x[i] = pack_two(O[j + 4 * i] * r0_, O[j + 4 * i + 1] * r0_);
            y[i] = pack_two(O[j + 4 * i + 2] * r1_, O[j + 4 * i + 3] * r1_);
          }
          transpose_quad(x, lane); transpose_quad(y, lane);       // now each lane holds 8 adjacent columns
          stg_words_if(o + j * 2, x, (unsigned)row < (unsigned)rows);
          stg_words_if(o + 8 * problem.o_row + j * 2, y, (unsigned)(row + 8) < (unsigned)rows);
        }
      }
      __syncwarp();
      release(done + 8 * item);
    }
  }
}

#ifndef FULL_ONLY
#define FULL_ONLY 0                   // 1, headdim 128: the tile of full attention and of chunks over longer caches
#endif
#ifndef PACKED
#define PACKED 0                      // 1: a row of tokens holds sequences, each of its own length
#endif

extern "C" __global__ void __launch_bounds__((Shape<HEADDIM, FULL_ONLY>::WGS + 1) * 128, 1)
attention_forward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, const __grid_constant__ Problem problem) {
  attend<HEADDIM, FULL_ONLY, PACKED>(q_map, k_map, v_map, problem);
}

#if PACKED
// list <- {blocks}, then for each query block {its first token of q, rows from there to the end of its sequence, first
// token of k, keys}: a problem of its own, the mask ending bottom-right. Blocks late in their sequence, which causal
// makes long, come first. q_begin, k_begin [sequences + 1]; no sequence has more than most_blocks. One CTA.
extern "C" __global__ void list_blocks(const int* q_begin, const int* k_begin, int sequences, int most_blocks,
                                       int4* list) {
  constexpr int M = 64 * Shape<HEADDIM, FULL_ONLY>::WGS;
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  for (int block = most_blocks - 1; block >= 0; block--) {
    __syncthreads();
    for (int i = threadIdx.x; i < sequences; i += blockDim.x) {
      const int begin = q_begin[i], rows = q_begin[i + 1] - begin - block * M;
      const int keys = k_begin[i + 1] - k_begin[i];
      if (rows > 0) list[1 + atomicAdd(&count, 1)] = {begin + block * M, rows, k_begin[i], keys};
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) list[0] = {count, 0, 0, 0};
}
#endif
