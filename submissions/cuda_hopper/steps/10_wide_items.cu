// Rung 10, wide items: at headdim 128 three warpgroups share each K and V tile instead of two.
// Changed  an item has 192 query rows, so L2 sends a third fewer bytes for the same products, and those bytes cost
//          watts, which are what headdim 128 lacks. Tiles of 64 keys leave 160 registers enough, with five of eight
//          k-steps of Q among them. Fewer, longer items are harder to balance, so the shortest blocks of all heads
//          come after the last section
//
//   rung 9    item 128 rows   K, V [128, D] x 2 stages   order   head 0-7, long ... short | head 8-15, ...
//   rung 10   item 192 rows   K, V [64, D] x 4 stages    order   head 0-7, long ... | ... | all heads, shortest quarter
//
// Shapes   q, k, v, o  [heads, S, D] contiguous fp16 (heads = batch * nheads); one CTA per SM, persistent
//          q_smem [SQ][WGS][64, D], its first 16 * Q_STEPS columns in registers too   k_smem, v_smem [SK, SV][N, D]
//          S [64, N], O [64, D] registers of a warpgroup
// Phases   LOAD (producer warp)   SCORE   SOFTMAX   ACCUMULATE   STORE
// Overflow a thread's partial row sum bounds all its P. If a P overflowed even fp32, l is inf or NaN for good, and the
//          item is done again with a running maximum.
// Bound    2 B H S^2 D flops (causal) at 4096 per clock and SM: 280 / 560 / 1120 us at 1.83 GHz on 132 SMs for the
//          three official configs. headdim 128 and 256 are held by the tensor cores at the clock that 700 W allow,
//          headdim 64 by them and the exponentials together
// Limits   sm_90a only; any S, any scale; at most one launch at a time per counter. A rung has one counter, cuda_hopper
//          one per stream
// Run      python run.py --submission cuda_hopper/steps/10_wide_items.cu
//
// promise: registers=168 spills=0 warnings=0 blocks=1
#include "sm90.cuh"

// a thread's sum of the first tile's P below this: the logits are wide, they get a running maximum
constexpr float P_FLAT = 0.02f;
constexpr int SAFE = 1 << 30;         // flag in an item's row word: redo with the running maximum

// kv rows per tile, consumer warpgroups of 64 query rows, K, V and Q stages; where a trip waits for K and for V; how
// many k-steps of 16 columns take Q from registers; whether the shortest items come last
template <int D> struct Shape;
template <>
struct Shape<64> {
  static constexpr int N = 64, WGS = 4, SK = 3, SV = 3, SQ = 2;
  static constexpr bool WAIT_K_FIRST = true, BOUNDARY = false;
  static constexpr int Q_STEPS = 0;
  static constexpr bool SHORT_LAST = false;
};
template <>
struct Shape<128> {
  static constexpr int N = 64, WGS = 3, SK = 4, SV = 4, SQ = 2;
  static constexpr bool WAIT_K_FIRST = false, BOUNDARY = true;
  static constexpr int Q_STEPS = 5;
  static constexpr bool SHORT_LAST = true;
};
template <>
struct Shape<256> {
  static constexpr int N = 80, WGS = 2, SK = 2, SV = 2, SQ = 1;
  static constexpr bool WAIT_K_FIRST = true, BOUNDARY = true;
  static constexpr int Q_STEPS = 6;
  static constexpr bool SHORT_LAST = false;
};

// counter: [2], next item and CTAs that are done; both 0 before and after a launch
template <int D>
__device__ __forceinline__ void attend(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map,
                                       uint16_t* o_base, int seqlen, float scale_log2, int causal, int heads,
                                       int section, int* counter) {
  constexpr int N = Shape<D>::N, WGS = Shape<D>::WGS, M = 64 * WGS, SK = Shape<D>::SK, SV = Shape<D>::SV,
                SQ = Shape<D>::SQ;
  constexpr bool WAIT_K_FIRST = Shape<D>::WAIT_K_FIRST, BOUNDARY = Shape<D>::BOUNDARY,
                 SHORT_LAST = Shape<D>::SHORT_LAST;
  constexpr uint32_t TILE_BYTES = N * D * 2, Q_BYTES = 64 * D * 2;
  constexpr int PRODUCER_REGS = WGS == 2 ? 24 : 32,
                CONSUMER_REGS = WGS == 2   ? 240
                                : WGS == 3 ? 160
                                           : 112,
                Q_STEPS = Shape<D>::Q_STEPS;
  const int section_log2 = 31 - __clz(section), blocks = (seqlen + M - 1) / M;
  // heads, whole sections
  const int padded = (heads + (1 << section_log2) - 1) >> section_log2 << section_log2, items = padded * blocks;
  // so many of the shortest blocks of all heads come last, their K and V no more than a section's; the items before
  // them:
  const int last_blocks = SHORT_LAST && causal ? (unsigned)(blocks << section_log2) / (unsigned)padded : 0,
            by_section = padded * (blocks - last_blocks);
  extern __shared__ __align__(1024) uint8_t smem[];
  const uint32_t base = smem_u32(smem);   // a link-time constant, which saves registers
  if (base & 1023) __trap();
  const uint32_t q_smem = base, k_smem = q_smem + SQ * WGS * Q_BYTES, v_smem = k_smem + SK * TILE_BYTES;
  const uint32_t k_full = v_smem + SV * TILE_BYTES, k_empty = k_full + 8 * SK;
  const uint32_t v_full = k_empty + 8 * SK, v_empty = v_full + 8 * SV;
  const uint32_t q_full = v_empty + 8 * SV, q_empty = q_full + 8 * WGS * SQ;
  const uint32_t done = q_empty + 8 * WGS * SQ;               // [2] all warps finished item i (barrier i % 2)
  // In every warp only lane 0 touches these words and flags (lds_lane0), so its arrival on done[] comes after all
  // accesses.
  const uint32_t item_smem = done + 16;                       // [2] x {head or -1, first row | SAFE} of item i
  const uint32_t redo_smem = item_smem + 16;                  // [2] item i overflowed
  const int wg = __shfl_sync(~0u, threadIdx.x >> 7, 0);       // warp-uniform; straight from threadIdx it spills
  if (threadIdx.x == 0) {
    for (int i = 0; i < SK; i++) { mbar_init(k_full + 8 * i, 1); mbar_init(k_empty + 8 * i, 4 * WGS); }
    for (int i = 0; i < SV; i++) { mbar_init(v_full + 8 * i, 1); mbar_init(v_empty + 8 * i, 4 * WGS); }
    for (int i = 0; i < WGS * SQ; i++) { mbar_init(q_full + 8 * i, 1); mbar_init(q_empty + 8 * i, 4); }
    for (int i = 0; i < 2; i++) { mbar_init(done + 8 * i, 4 * WGS); sts_if(redo_smem + 4 * i, 0, 1); }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    proxy_fence();
  }
  __syncthreads();

  if (wg == 0) {
    // ----------------------------------------------------------------------------------- producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGS));
    if (__shfl_sync(~0u, threadIdx.x >> 5, 0) == 0) {
      // One converged warp walks the loop and lane 0 acts, by predicates inside the asm.
      const int leader = (threadIdx.x & 31) == 0;
      int ks = 0, vs = 0, qs = 0, last_v_row = -1, last_v_head = 0, redo_slot = -1, item = 0, verified = 0,
          fetched = (int)blockIdx.x - (int)gridDim.x;
      uint32_t kp = 1, vp = 1, qp = 1;
      auto fill = [&](const TensorMap* map, uint32_t dst, uint32_t full, int row, int head) {
        mbar_expect_if(full, TILE_BYTES, leader);
#pragma unroll
        for (int c = 0; c < D / 64; c++) tma_load_if(dst + c * N * 128, map, c * 64, row, head, full, leader);
      };
      auto put_k = [&](int row, int head) {
        mbar_wait(k_empty + 8 * ks, kp); fill(&k_map, k_smem + ks * TILE_BYTES, k_full + 8 * ks, row, head);
        if (++ks == SK) ks = 0, kp ^= 1;
      };
      auto put_v = [&](int row, int head) {
        mbar_wait(v_empty + 8 * vs, vp); fill(&v_map, v_smem + vs * TILE_BYTES, v_full + 8 * vs, row, head);
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
        int head, row_word;
        const int index = __shfl_sync(~0u, fetched, 0) + gridDim.x;
        if (redo_slot < 0 && index >= items) {                  // nothing left but the last item's verdict
          if (last_v_row >= 0) put_v(last_v_row, last_v_head);
          last_v_row = -1;
          if (verified < item) verify(item - 1);
          if (redo_slot < 0) break;
        }
        if (redo_slot >= 0) {
          head = lds_lane0(item_smem + 8 * redo_slot, leader);
          row_word = lds_lane0(item_smem + 8 * redo_slot + 4, leader) | SAFE;
          redo_slot = -1;
        } else {
          // longest query blocks first within a section of heads, then the last ones of all heads
          int block;
          if (!SHORT_LAST || index < by_section) {
            const int group = index >> section_log2, each = blocks - last_blocks,
                      section = (unsigned)group / (unsigned)each;
            block = group - section * each; head = (section << section_log2) + (index & ((1 << section_log2) - 1));
          } else {
            const int rest = index - by_section, row_of_items = (unsigned)rest / (unsigned)padded;
            block = blocks - last_blocks + row_of_items; head = rest - row_of_items * padded;
          }
          row_word = (causal ? blocks - 1 - block : block) * M;
        }
        if (head < heads) {                                       // else it only fills up the last section
          const int first_row = row_word & ~SAFE, end = causal ? min(first_row + M, seqlen) : seqlen;
          put_k(0, head); if (last_v_row >= 0) put_v(last_v_row, last_v_head);
          sts_if(item_smem + 8 * (item & 1), head, leader); sts_if(item_smem + 8 * (item & 1) + 4, row_word, leader);
#pragma unroll 1
          for (int w = 0; w < WGS; w++) {
            const int slot = w * SQ + qs;
            mbar_wait(q_empty + 8 * slot, qp);
            mbar_expect_if(q_full + 8 * slot, Q_BYTES, leader);
#pragma unroll
            for (int c = 0; c < D / 64; c++)
              tma_load_if(q_smem + (qs * WGS + w) * Q_BYTES + c * 8192, &q_map, c * 64, first_row + w * 64, head,
                          q_full + 8 * slot, leader);
          }
          if (++qs == SQ) qs = 0, qp ^= 1;
          int row = N;
#pragma unroll 1
          for (; row < end; row += N) { put_k(row, head); put_v(row - N, head); }
          last_v_row = row - N; last_v_head = head;
          item++;
        }
        // All tiles of the item are asked for; the consumers still have a stage or two to do, which hides the latency.
        // An item that is done again did not use up its number.
        atomic_next_if(fetched, counter, leader & (row_word < SAFE));
        if (verified < item - 1) verify(item - 2);
      }
      sts_if(item_smem + 8 * (item & 1), -1, leader);             // tell the consumers to stop
#pragma unroll 1
      for (int w = 0; w < WGS; w++) {
        mbar_wait(q_empty + 8 * (w * SQ + qs), qp);
        mbar_arrive_if(q_full + 8 * (w * SQ + qs), leader);
      }
      if (leader) {                                               // the last CTA leaves the counters as it found them
        __threadfence();
        if (atomicAdd(counter + 1, 1) == (int)gridDim.x - 1) { counter[0] = 0; counter[1] = 0; }
      }
    }
  } else {
    // ---------------------------------------------------------------------------------- consumers
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGS));
    constexpr int NS = N / 2, NO = D / 2, NP = N / 4;
    // A thread's sum of a tile's P that the reference passes with: as if all were 1, and one of 32. It bounds each P,
    // so they fit fp16.
    constexpr float P_LIMIT = N / 4 + 32;
    float S[NS], O[NO]; uint32_t P[NP], Q[Q_STEPS ? 4 * Q_STEPS : 1];
    const int w = wg - 1, lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int lane0 = lane == 0;
    int ks = 0, vs = 0, qs = 0, k_use = 0; uint32_t kp = 0, vp = 0, qp = 0;
    auto wait_k = [&] { mbar_wait(k_full + 8 * ks, kp); k_use = ks; ks = ks + 1 == SK ? 0 : ks + 1; kp ^= (ks == 0); };
    auto wait_v = [&] { mbar_wait(v_full + 8 * vs, vp); };
    auto next_v = [&] { vs = vs + 1 == SV ? 0 : vs + 1; vp ^= (vs == 0); };
    auto release = [&](uint32_t bar) { mbar_arrive_if(bar, lane0); };
    auto pass_turn = [&] { named_arrive(1 + (w + 1 == WGS ? 0 : w + 1)); };
    // rows lane/4 and lane/4 + 8 of the warp's 16; m in log2 units
    float m0, m1, l0, l1;
    const float scale = scale_log2 == 0.f ? 1e-30f : scale_log2;  // 0 * -inf would be NaN

    auto issue_qk = [&](uint32_t q_desc) {
      const uint32_t k_desc = desc_low(k_smem, 16) + k_use * (TILE_BYTES >> 4);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        const uint32_t k_now = k_desc + (i & 3) * 2 + (i >> 2) * (N * 8);
        if (i < Q_STEPS) QKFromRegisters<N>::mma(S, Q + 4 * i, k_now, i != 0);
        else QK<N>::mma(S, q_desc + (i & 3) * 2 + (i >> 2) * 512, k_now, i != 0);
      }
      wgmma_commit();
    };
    auto issue_pv = [&] {
      const uint32_t v_desc = desc_low(v_smem, N * 128) + vs * (TILE_BYTES >> 4);
#pragma unroll
      for (int i = 0; i < N / 16; i++) PV<D>::mma(O, P + 4 * i, v_desc + i * 128);
      wgmma_commit();
    };
    auto row_max = [&](float& x0, float& x1) {
#pragma unroll
      for (int i = 0; i < NS; i += 4) {
        x0 = fmaxf(x0, fmaxf(S[i], S[i + 1])); x1 = fmaxf(x1, fmaxf(S[i + 2], S[i + 3]));
      }
      x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, 1)); x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, 2));
      x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, 1)); x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, 2));
    };
    auto row_sum = [&](float& x0, float& x1) {
#pragma unroll
      for (int i = 0; i < NS; i += 4) { x0 += S[i] + S[i + 1]; x1 += S[i + 2] + S[i + 3]; }
    };
    auto pack_p = [&] {
#pragma unroll
      for (int i = 0; i < NP; i++) P[i] = pack_half2(S[2 * i], S[2 * i + 1]);
    };
    // O += (P - half(P)) V: with it, and with P V to come, P counts in full
    auto add_rest = [&] {
#pragma unroll
      for (int i = 0; i < NP; i++) P[i] = pack_rest(S[2 * i], S[2 * i + 1]);
      touch(P);
      wait_v(); wgmma_fence(); issue_pv(); wgmma_wait<0>(); touch(O);
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
    // exact softmax of a tile that may be masked: S <- 2^(S * scale - m), m the running maximum; returns old m - new m
    auto safe_softmax = [&](int tile, int limit0, int limit1, float& d0, float& d1) {
      limit0 -= tile * N; limit1 -= tile * N;
#pragma unroll
      for (int i = 0; i < NS; i++) {
        const bool masked = i / 4 * 8 + (i & 1) > ((i & 2) ? limit1 : limit0);
        S[i] = masked ? -__int_as_float(0x7f800000) : S[i] * scale;
      }
      d0 = m0; d1 = m1;
      row_max(m0, m1); d0 -= m0; d1 -= m1;
#pragma unroll
      for (int i = 0; i < NS; i++) S[i] = exp2_approx(S[i] - ((i & 2) ? m1 : m0));
    };

    if (w == 0) named_arrive(1);                          // warpgroup 0 issues first
#pragma unroll 1
    for (int item = 0;; item ^= 1) {
      const int slot = w * SQ + qs;
      mbar_wait(q_full + 8 * slot, qp);
      const int head = lds_lane0(item_smem + 8 * item, lane0), row_word = lds_lane0(item_smem + 8 * item + 4, lane0);
      if (head < 0) break;
      const uint32_t q_desc = desc_low(q_smem, 16) + (qs * WGS + w) * (Q_BYTES >> 4);
      // Q [16, 16 * Q_STEPS] of this warp, out of the 128-byte swizzle
      if constexpr (Q_STEPS > 0) {
        const int q_row = warp * 16 + (lane & 15);
        const uint32_t row_smem = q_smem + (qs * WGS + w) * Q_BYTES + q_row * 128;
#pragma unroll
        for (int i = 0; i < Q_STEPS; i++)
          ldmatrix_x4(Q + 4 * i, row_smem + (i >> 2) * 8192 + ((((i & 3) * 2 + (lane >> 4)) ^ (q_row & 7)) << 4));
        touch(Q);
      }
      const int r0 = (row_word & ~SAFE) + w * 64;                 // this warpgroup's rows r0 ... r0 + 63
      const int row = r0 + warp * 16 + (lane >> 2);               // this thread's rows: row and row + 8
      const int limit0 = (causal ? min(row, seqlen - 1) : seqlen - 1) - 2 * (lane & 3);       // last valid kv row,
      const int limit1 = (causal ? min(row + 8, seqlen - 1) : seqlen - 1) - 2 * (lane & 3);   // less this lane's column
      // kv tiles: [0, full) need no mask in any of the 64 rows, [full, mine) do, [mine, all) only later warpgroups need
      const int all = ((causal ? min((row_word & ~SAFE) + M, seqlen) : seqlen) - 1) / N + 1;
      const int mine = causal ? (r0 < seqlen ? (min(r0 + 64, seqlen) - 1) / N + 1 : 1) : all;
      const int full = (causal ? min(r0 + 1, seqlen) : seqlen) / N;

      // first tile: nothing to overlap with inside this warpgroup
      wait_k();
      wgmma_fence(); issue_qk(q_desc); wgmma_wait<0>(); touch(S); release(k_empty + 8 * k_use);
      { m0 = m1 = -1e30f; l0 = l1 = 0.f; float d0, d1; safe_softmax(0, limit0, limit1, d0, d1); row_sum(l0, l1); }
#pragma unroll
      for (int i = 0; i < NO; i++) O[i] = 0.f;
      // few keys: here the rounding of P would be half of the error
      if (causal && row_word == 0) add_rest();
      pack_p(); touch(P);
      if (!WAIT_K_FIRST && mine > 1) wait_k();

      // QK of this tile and PV of the one before are in flight together; QK is complete on return
      int tile = 1;
      // the reference is kept while no thread's sum passes this; below 0 it is the running maximum
      float limit = __any_sync(~0u, fminf(l0, l1) < P_FLAT) ? -1.f : P_LIMIT;
      auto issue = [&] {
        if (WAIT_K_FIRST) wait_k();
        named_sync(1 + w);
        const int k_now = k_use;
        wgmma_fence(); issue_qk(q_desc);
        wait_v(); wgmma_fence(); issue_pv();
        pass_turn();
        wgmma_wait<1>(); touch(S); release(k_empty + 8 * k_now);
      };
      auto finish_pv = [&](int more) {
        // ptxas moves the exps below the wait for PV unless a basic block ends here; a spin ends one
        if (!WAIT_K_FIRST) { if (more) wait_k(); }
        else if (BOUNDARY) wait_v();                              // this V came long ago
        wgmma_wait<0>(); touch(O); release(v_empty + 8 * vs); next_v();
      };
      if (row_word & SAFE) {
#pragma unroll 1
        for (; tile < mine; ++tile) {                             // the item is done again, with a running maximum
          issue();
          float d0, d1, s0 = 0.f, s1 = 0.f;
          safe_softmax(tile, limit0, limit1, d0, d1); row_sum(s0, s1);
          finish_pv(tile + 1 < mine);
          const float a0 = exp2_approx(d0), a1 = exp2_approx(d1);
          l0 = l0 * a0 + s0; l1 = l1 * a1 + s1; scale_o(a0, a1); pack_p(); touch(P);
        }
      }
#pragma unroll 1
      for (; tile < mine; ++tile) {
        // Lazy softmax: m stays at the maximum of the first tile. Every P of a thread is <= its partial row sum,
        // so a sum <= P_LIMIT proves that all of them fit fp16 (the comparison is also false for NaN and inf).
        issue();
        if (tile >= full) mask(tile, limit0, limit1);
        float s0 = 0.f, s1 = 0.f;
#pragma unroll
        for (int i = 0; i < NS; i++) S[i] = exp2_approx(fmaf(S[i], scale, (i & 2) ? -m1 : -m0));
        row_sum(s0, s1);
        finish_pv(tile + 1 < mine); pack_p(); touch(P);
        // m rises to the maximum so far, whose P is then exactly 1
        if (__any_sync(~0u, !(s0 <= limit) | !(s1 <= limit))) {
          float x0 = 1.f, x1 = 1.f; row_max(x0, x1);
          limit = -1.f;   // rows that outgrew it will do so again: from here on every tile
          const float a0 = rcp_or_nan(x0), a1 = rcp_or_nan(x1);
          m0 += log2_approx(x0); m1 += log2_approx(x1); s0 *= a0; s1 *= a1; l0 *= a0; l1 *= a1;
#pragma unroll
          for (int i = 0; i < NS; i++) S[i] *= (i & 2) ? a1 : a0;
          scale_o(a0, a1); pack_p();
        }
        l0 += s0; l1 += s1;
      }
      release(q_empty + 8 * slot);                                // the next item's Q may come
      if (++qs == SQ) qs = 0, qp ^= 1;
      wait_v(); wgmma_fence(); issue_pv();
      // tiles that only later warpgroups need: take part in the ring, hand the slots back
      int v_held = vs; next_v();
#pragma unroll 1
      for (int i = mine; i < all; i++) {
        wait_k(); named_sync(1 + w); pass_turn();
        release(k_empty + 8 * k_use);
        wgmma_wait<0>(); release(v_empty + 8 * v_held);
        wait_v(); v_held = vs; next_v();
      }
      wgmma_wait<0>(); touch(O); release(v_empty + 8 * v_held);

      // epilogue, each warp alone
      l0 += __shfl_xor_sync(~0u, l0, 1); l0 += __shfl_xor_sync(~0u, l0, 2);
      l1 += __shfl_xor_sync(~0u, l1, 1); l1 += __shfl_xor_sync(~0u, l1, 2);
      // a P that overflowed fp32 made its row sum inf or NaN for good: the whole item is done again in safe mode
      if (__any_sync(~0u, !(l0 < 1e38f) | !(l1 < 1e38f)) && !(row_word & SAFE)) sts_if(redo_smem + 4 * item, 1, lane0);
      else {
        const float r0_ = rcp_approx(l0), r1_ = rcp_approx(l1);
        uint16_t* o = o_base + ((uint64_t)head * seqlen + row) * D + (lane & 3) * 8;
#pragma unroll
        for (int j = 0; j < NO; j += 16) {                        // 32 columns: 4 lanes hold 4 x 2 each of two rows
          uint32_t x[4], y[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            x[i] = pack_half2(O[j + 4 * i] * r0_, O[j + 4 * i + 1] * r0_);
            y[i] = pack_half2(O[j + 4 * i + 2] * r1_, O[j + 4 * i + 3] * r1_);
          }
          transpose_quad(x, lane); transpose_quad(y, lane);       // now each lane holds 8 adjacent columns
          if (row < seqlen) *reinterpret_cast<uint4*>(o + j * 2) = make_uint4(x[0], x[1], x[2], x[3]);
          if (row + 8 < seqlen) *reinterpret_cast<uint4*>(o + 8 * D + j * 2) = make_uint4(y[0], y[1], y[2], y[3]);
        }
      }
      __syncwarp();
      release(done + 8 * item);
    }
  }
}

__device__ int own_counter[2];        // kernels/attention.cu takes one from its caller instead

template <int D>
__global__ void __launch_bounds__((Shape<D>::WGS + 1) * 128, 1)
step(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
     const __grid_constant__ TensorMap v_map, uint16_t* o, int seqlen, float scale_log2, int causal, int heads,
     int section) {
  attend<D>(q_map, k_map, v_map, o, seqlen, scale_log2, causal, heads, section, own_counter);
}
