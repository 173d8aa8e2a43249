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
#pragma once
#include "rows.cuh"

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
