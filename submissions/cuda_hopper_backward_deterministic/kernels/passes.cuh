// The pass before the backward without a launch and time of its own: spare warps of the main blocks do it for other
// heads.
//
// A grid walks sections of heads, blocks start in the order of their index:
//     first blocks  preprocess sections 0 and 1
//     main blocks   of section 0, 1, 2, ...: a spare warp of those of section s preprocesses section s + 2
// preprocess  what main needs of o and lse
// Who needs something waits until `done` says that it is there. It waits for blocks of smaller index only, whose spare
// warps wait for nothing; so nobody waits for ever, whatever else runs on the GPU.
//
// Shapes   o, do, dq [heads, S, D] 16-bit floats, lse [heads, S] float32, natural logarithm. T = ceil(S / 64) tiles of
//          64 query rows
//          stats [heads, T, 2, 64] float32: lse * log2(e), then delta = rowsum(do * o), columns in the order of
//          stat_place; rows past S hold +inf and 0, so that their P and dS are 0
//          dq_sum [heads, T, 64 * D] float32, a tile as the accumulators of main hold it
//          done [sections] uint32, zero at launch: half tiles that are preprocessed
#pragma once
#include "order.cuh"

struct Passes {
  const uint16_t* o;  // [heads, seqlen, D], like d_o and dq
  const uint16_t* d_o;
  const float* lse;  // [heads, seqlen]
  float* stats;
  float* dq_sum;
  uint16_t* dq;
  uint32_t* done;
  Order order;
  int seqlen;
  float scale;  // softmax scale
};

struct Item {
  int first;  // a first block, or a main one
  int section, wide;  // which section of heads, how many heads it has
  int index;  // of this block among the section's blocks of its kind
};

constexpr int HALVES = 16;  // half tiles of a first block: one for each of its warps
__device__ __forceinline__ int section_width(const Order& p, int section) {
  return max(0, min(p.section, p.heads - section * p.section));
}

// What block x of the grid does
__device__ __forceinline__ Item item_of(int x, const Order& p, int tiles, int blocks_a_head) {
  auto pass_blocks = [&](int section) { return (2 * section_width(p, section) * tiles + HALVES - 1) / HALVES; };
#pragma unroll
  for (int s = 0; s < 2; s++) {
    if (x < pass_blocks(s)) return {1, s, section_width(p, s), x};
    x -= pass_blocks(s);
  }
  const int section = x / (p.section * blocks_a_head);
  return {0, section, section_width(p, section), x - section * p.section * blocks_a_head};
}

// Query column c of a tile in stats: a lane of a quad reads those of eight of its registers with one load of 16 bytes
__device__ __forceinline__ int stat_place(int c) { return (c & ~15) + (c >> 1 & 3) * 4 + (c >> 3 & 1) * 2 + (c & 1); }

// One warp's passes over half tiles (32 query rows): `space`, 8 KB of shared memory and a barrier, are this warp's
template <int D>
struct PassWarp {
  static constexpr int HALF_BYTES = 32 * D * 4;  // 32 rows of o and of do
  const Passes& p;
  uint32_t space, full;
  int lane, tiles;
  uint32_t parity = 0;

  // half tile `half`, counted over all heads: stats <- o, do, lse
  __device__ __forceinline__ void preprocess(int half) {
    static_assert(D == 64, "a row is 8 lanes of 16 bytes");
    const int tile = half >> 1, head = tile / tiles, row0 = (half - head * tiles * 2) * 32,
              rows = min(32, p.seqlen - row0);
    const uint64_t first = (uint64_t)head * p.seqlen + row0;
    if (rows > 0) {
      mbar_expect_if(full, 2 * rows * D * 2, lane == 0);
      bulk_load_if(space, p.o + first * D, rows * D * 2, full, lane == 0);
      bulk_load_if(space + HALF_BYTES / 2, p.d_o + first * D, rows * D * 2, full, lane == 0);
    }
    const int row = 4 * (lane & 7) + (lane >> 3);  // the row whose sum this lane keeps
    float l = row < rows ? p.lse[first + row] * 1.4426950408889634f : infinity(), delta = 0.f;
    if (rows > 0) {
      mbar_wait(full, parity);
      parity ^= 1;
#pragma unroll 2
      for (int i = 0; i < 8; i++) {  // 4 rows at a time, 8 lanes a row
        uint32_t x[4], y[4];
        float sum = 0.f;
        lds_words(x, space + (i * 32 + lane) * 16);
        lds_words(y, space + HALF_BYTES / 2 + (i * 32 + lane) * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float2 u = unpack_half2(x[j]), v = unpack_half2(y[j]);
          sum = fmaf(u.x, v.x, sum);
          sum = fmaf(u.y, v.y, sum);
        }
#pragma unroll
        for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if ((lane & 7) == i) delta = sum;
      }
    }
    float* stat = p.stats + (uint64_t)tile * 128 + stat_place((half & 1) * 32 + row);
    stat[0] = l == -infinity() ? infinity() : l;  // -inf: a row that saw no key
    stat[64] = row < rows ? delta : 0.f;
    __syncwarp();
  }

  // Share `index` of `shares` of a section's half tiles, this warp's part of it
  __device__ __forceinline__ void preprocess_share(int section, int index, int shares, int warp, int warps) {
    const int all = 2 * section_width(p.order, section) * tiles, base = 2 * section * p.order.section * tiles;
    const int begin = (int)((uint64_t)all * index / shares) + warp, end = (int)((uint64_t)all * (index + 1) / shares);
    int count = 0;
#pragma unroll 1
    for (int half = begin; half < end; half += warps) preprocess(base + half), count++;
    if (count) counter_add_if(p.done + section, count, lane == 0);
  }
};
