// In which order kv blocks add their part of dQ to a tile of dq_sum: always the same, so the same inputs give the same
// bits.
//
// Sections of heads are walked in one of two ways. `turns` counts for each tile the blocks that have added; a block
// adds when the count is its rank, the first one stores, so nothing is cleared.
//
//   rising   blocks start with the last kv rows, query tiles ascend; causal: block j is first at its own diagonal, then
//            j - 1, ... Blocks of a head that start together are a diagonal apart, one that starts later is further
//            behind: nobody waits. But the longest blocks of a causal section end last
//   falling  blocks start with the first kv rows, the longest if causal, query tiles descend; block 0 is first, then 1,
//            ... For the last section, whose blocks start one by one, when others end
//
// Everybody waits for blocks of smaller index only, so nobody waits for ever.
#pragma once
#include "rows.cuh"

struct Order {
  uint32_t* turns;  // [heads, tiles], zero before
  int heads;  // batch * heads
  int section;  // heads that are walked together, so that their q, do and dq_sum stay in L2
  int falling_from;  // from this section on: falling
};

struct Walk {
  int head, kv_block;
  int tile, step, trips;  // first query tile; the next one is `step` further on
  int rank;  // this block's at the first tile
  int rises;  // whether it rises by one every N / M tiles
};

// What block `index` of a section does. M query rows a tile, N kv rows a block
template <int M, int N>
__device__ __forceinline__ Walk walk_of(
    const Order& order, int section, int wide, int index, int tiles, int kv_blocks, int causal) {
  const int place = index / wide, falling = section >= order.falling_from;
  Walk walk;
  walk.head = section * order.section + index - place * wide;
  walk.kv_block = falling ? place : kv_blocks - 1 - place;
  const int first = causal ? walk.kv_block * N / M : 0;
  walk.trips = tiles - first;
  walk.tile = falling ? tiles - 1 : first;
  walk.step = falling ? -1 : 1;
  walk.rank = falling ? walk.kv_block : causal ? 0 : place;
  walk.rises = causal && !falling;
  return walk;
}
// how many blocks add to a tile
template <int M, int N>
__device__ __forceinline__ int blocks_of(int tile, int kv_blocks, int causal) {
  return causal ? tile * M / N + 1 : kv_blocks;
}
// this block's rank at the tile of trip i
template <int M, int N>
__device__ __forceinline__ int rank_of(const Walk& walk, int i) {
  return walk.rank + (walk.rises ? i * M / N : 0);
}
