// What the warps do that the loader's warpgroup has to spare at headdim 128: the short passes around the backward;
// or, with STORED=1 (below), that nobody has to clear the sums of dq.
//
// A queue of half tiles (32 query rows) in rounds: first those of section n + lead, to be preprocessed once the first
// item of section n is taken, then those of section n - lag, to be postprocessed once all items of that section are through.
// Launches of their own (passes.cu) preprocess the sections before `lead` and postprocess those behind the last round.
// A warp takes one half after the other and a block one item after the other, in the order of their numbers, and each
// waits only for what somebody took before it. So nobody waits for ever, whatever else runs on the GPU.
//
// Shapes   o, do, dq [heads, S, 128] 16-bit floats, lse [heads, S]; stats, dq_sum: passes.cu
#pragma once
#include "rows.cuh"

constexpr int SPARE_WARPS = 3;
constexpr int UNIT = 8;                                  // query rows at once: 4 KB of o and do, or of sums
constexpr uint32_t SUM_PITCH = 512 + 64;                 // of a warp's 16 D rows of a unit in shared memory: no bank conflicts
constexpr uint32_t SPARE_BYTES = 8 * SUM_PITCH;

struct Spare {
  const uint16_t* o;     // [heads, seqlen, D], like d_o and dq
  const uint16_t* d_o;
  const float* lse;      // [heads, seqlen]
  uint16_t* dq;
  uint32_t* queue;       // halves taken; zero before, as ready and done
  uint32_t* ready;       // [sections] halves that are preprocessed
  uint32_t* done;        // [sections] warps that are through with an item
  int lead;              // 0: these passes are launches of their own
  int lag;
};

// half tiles of a section of heads
__device__ __forceinline__ int halves_of(int heads, int section, int index, int tiles) {
  return 2 * tiles * min(section, heads - index * section);
}

template <class MainParams> struct SpareWarp {
  static constexpr int D = 128;
  const MainParams& main;
  uint32_t space, full;  // SPARE_BYTES of shared memory and a barrier, this warp's
  int tiles, kv_blocks;
  uint32_t parity = 0;

  // stats <- o, do, lse; dq sums <- 0, of 8 rows from row0 on
  __device__ __forceinline__ void preprocess(int head, int row0) {
    const int lane = lane_now(), rows = max(0, min(UNIT, main.seqlen - row0));
    const uint64_t first = (uint64_t)head * main.seqlen + row0, in_sums = ((uint64_t)head * tiles * 64 + row0) * D;
    if (rows > 0) {
      mbar_expect_if(full, 2 * rows * D * 2, lane == 0);
      bulk_load_if(space, main.spare.o + first * D, rows * D * 2, full, lane == 0);
      bulk_load_if(space + UNIT * D * 2, main.spare.d_o + first * D, rows * D * 2, full, lane == 0);
    }
    float4* sums = reinterpret_cast<float4*>(main.dq_sum + in_sums) + lane;
#pragma unroll
    for (int i = 0; i < UNIT * D / 128; i++) sums[i * 32] = make_float4(0.f, 0.f, 0.f, 0.f);
    float* stat = const_cast<float*>(main.stats) + ((uint64_t)head * tiles + (row0 >> 6)) * 128 + (row0 & 63);
    if (lane < UNIT) {
      float l = lane < rows ? main.spare.lse[first + lane] * 1.4426950408889634f : infinity();
      stat[lane] = l == -infinity() ? infinity() : l;    // -inf: a row that saw no key
      if (lane >= rows) stat[64 + lane] = 0.f;
    }
    if (rows > 0) {
      mbar_wait(full, parity); parity ^= 1;
#pragma unroll 1
      for (int i = 0; i < UNIT / 2; i++) {               // two rows at a time, 16 lanes a row
        uint32_t x[4], y[4]; float sum = 0.f;
        lds_words(x, space + (i * 32 + lane) * 16); lds_words(y, space + UNIT * D * 2 + (i * 32 + lane) * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float2 u = unpack_half2(x[j]), v = unpack_half2(y[j]);
          sum = fmaf(u.x, v.x, sum); sum = fmaf(u.y, v.y, sum);
        }
#pragma unroll
        for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        const int in_unit = 2 * i + (lane >> 4);
        if ((lane & 15) == 0 && in_unit < rows) stat[64 + in_unit] = sum;
      }
    }
    __syncwarp();
  }

  // dq <- its sums, 8 rows from row0 on. A unit is 8 pieces of [32][4] floats, one of each main warp: see passes.cu
  __device__ __forceinline__ void postprocess(int head, int row0) {
    const int lane = lane_now(), rows = main.seqlen - row0;
    if (rows <= 0) return;
    const uint64_t tile = (uint64_t)head * tiles + (row0 >> 6);
    const float* source = main.dq_sum + tile * 64 * D + (row0 >> 3 & 7) * 128 + lane * 1024;
    mbar_expect_if(full, 8 * 512, lane == 0); __syncwarp();
    bulk_load_if(space + lane * SUM_PITCH, source, 512, full, lane < 8);
    const int quad = lane >> 1 & 3, upper = lane & 1, row = 2 * quad;   // two rows, 8 of 16 columns of dq
    uint16_t* out = main.spare.dq + ((uint64_t)head * main.seqlen + row0 + row) * D + 8 * upper + (lane >> 3) * 16;
    mbar_wait(full, parity); parity ^= 1;
#pragma unroll 1
    for (int half = 0; half < 2; half++, out += 64) {
      const uint32_t at = space + (half * 4 + (lane >> 3)) * SUM_PITCH + quad * 16 + upper * 8;
#pragma unroll 1
      for (int r = 0; r < 2; r++) {
        uint32_t y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
          y[i] = pack_half2(lds_float(at + i * 128 + r * 4) * main.scale,
                            lds_float(at + i * 128 + 64 + r * 4) * main.scale);
        if (row + r < rows) *reinterpret_cast<uint4*>(out + r * D) = make_uint4(y[0], y[1], y[2], y[3]);
      }
    }
    __syncwarp();
  }

  // items of the sections before section `index`
  template <int PIECES> __device__ __forceinline__ int items_before(int index) {
    const int block = min(index * main.section, main.heads) * kv_blocks;
    return block <= main.whole ? block : main.whole + (block - main.whole) * PIECES;
  }

  template <int PIECES> __device__ __forceinline__ void run() {
    const int halves = 2 * tiles * main.section, sections = (main.heads + main.section - 1) / main.section;
    const int all = 2 * halves * sections;
    auto take = [&] { return (int)__shfl_sync(~0u, counter_take_if(main.spare.queue, lane_now() == 0), 0); };
#pragma unroll 1
    for (int ticket = take(); ticket < all;) {
      const int round = ticket / (2 * halves), in_round = ticket - round * 2 * halves;
      const int before = in_round < halves, half = before ? in_round : in_round - halves;
      const int index = before ? round + main.spare.lead : round - main.spare.lag;
      const int head = index * main.section + half / (2 * tiles), row0 = half % (2 * tiles) * 32;
      if (index >= 0 && head < main.heads) {
        if (before) counter_wait(main.taken, round ? items_before<PIECES>(round) + 1 : 0);
        else counter_wait(main.spare.done + index, 8 * (items_before<PIECES>(index + 1) - items_before<PIECES>(index)));
        proxy_fence_global();
#pragma unroll 1
        for (int i = 0; i < 32; i += UNIT) {
          if (before) preprocess(head, row0 + i);
          else postprocess(head, row0 + i);
        }
        if (before) counter_add_fenced_if(main.spare.ready + index, 1, lane_now() == 0);
      }
      ticket = take();
    }
  }
};

// ------------------------------------------------------------------------------------ Stored
// Sums of dq that nobody clears, for causal attention at headdim 128 (STORED=1).
//
//            query tiles →      S  stores its dQ: the two tiles on a block's diagonal, the first of its item
//   block 0  S  S  A  A  A  A   A  adds to them: waits until who stores has told that they are in memory
//   block 1        S  S  A  A
//   block 2              S  S   Items of a head come from the last kv rows to the first, so that each waits
//                               only for items that somebody took before: nobody waits for ever
//
// Who starts together is a diagonal apart, so that waiting is rare. Two of the three spare warps wait and tell for
// those that multiply. The last sections of heads are done the other way: cleared, added to, the longest items first.
#ifndef STORED
#define STORED 0
#endif
struct Stored {
  uint32_t* warps;       // [heads, kv blocks] warps of a block whose own tiles are in memory, zeros before
  int sections;          // the first so many
};
constexpr int OWN = 2;                                   // tiles on a block's diagonal
constexpr int STORES = 24, MAY_ADD = 28;                 // of an item's record: whether it stores; for how many blocks
                                                         // behind it that is done

template <class MainParams> struct StoredWarp {
  static constexpr int N = 128, WARPS = 8, RECORDS = 4, RECORD_BYTES = 32;
  const MainParams& main;
  uint32_t record_smem, k_full, k_empty;
  int kv_blocks;

  // Calls `of_item(record, [head, kv block] in `warps`, kv block)` for each item, once its keys are there
  template <class Do> __device__ __forceinline__ void each_item(Do of_item) {
    uint32_t record = record_smem, parity = 0;
#pragma unroll 1
    while (true) {
      mbar_wait(k_full, parity); parity ^= 1;
      if (lds_word(record + 12) == 0) break;
      const int kv_block = (int)lds_word(record + 4) / N;
      of_item(record, main.stored.warps + (int)lds_word(record) * kv_blocks + kv_block, kv_block);
      record = record == record_smem + (RECORDS - 1) * RECORD_BYTES ? record_smem : record + RECORD_BYTES;
    }
  }
  __device__ __forceinline__ void let_add() {
    each_item([&](uint32_t record, const uint32_t* stored, int kv_block) {
      if (lds_word(record + STORES)) {
#pragma unroll 1
        for (int i = 1; kv_block + i < kv_blocks; i++) {
          counter_wait(stored + i, WARPS); proxy_fence_global();
          count_up_if(record + MAY_ADD, i, lane_now() == 0);
        }
      }
      mbar_arrive_if(k_empty, lane_now() == 0);
    });
  }
  // own_stored: two barriers in turn, as own tiles may be told of while the next item runs; before k of the one after
  // that is loaded they are
  __device__ __forceinline__ void tell(uint32_t own_stored) {
    uint32_t which = 0, parity = 0;
    each_item([&](uint32_t, uint32_t* stored, int) {
      mbar_arrive_if(k_empty, lane_now() == 0);
      mbar_wait(own_stored + 8 * which, parity);
      counter_add_fenced_if(stored, WARPS, lane_now() == 0);
      parity ^= which; which ^= 1;
    });
  }
};
