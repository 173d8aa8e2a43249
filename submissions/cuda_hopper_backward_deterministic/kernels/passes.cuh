// The pass before the backward without a launch and time of its own: spare warps of the main blocks do it for other
// heads.
//
// A grid walks sections of heads, blocks start in the order of their index:
//     first blocks  preprocess sections 0 and 1
//     main blocks   take items (a kv block of a head) of section 0, 1, 2, ... from a counter; a spare warp preprocesses
//                   section s + 2 beside those of section s
// preprocess  what main needs of o and lse
// Who needs something waits until `done` says that it is there. It waits for first blocks and for items taken before
// only, whose spare warps wait for nothing; so nobody waits for ever, whatever else runs on the GPU.
//
// Shapes   o, do, dq [heads, S, D] 16-bit floats, lse [heads, S] float32, natural logarithm. T = ceil(S / 64) tiles of
//          64 query rows
//          stats [heads, T, 2, 64, 8] bfloat16: -lse / scale, then -delta, delta = rowsum(do * o), each as three parts
//          that add up to it: a product adds them to scores and dP (MmaColumns). Rows past S hold -3e38 (times the sign
//          of scale) and 0, so that their P and dS are 0
//          dq_sum [heads, T, 64 * D] float32, a tile as the accumulators of main hold it
//          done [sections + 1] uint32, zero at launch: half tiles that are preprocessed; last, items taken
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
  float scale_log2;  // times log2(e); never 0, for lse is divided by it
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

// Which kv block of which section of heads item x is
__device__ __forceinline__ Item main_item(int x, const Order& p, int blocks_a_head) {
  const int section = x / (p.section * blocks_a_head);
  return {0, section, section_width(p, section), x - section * p.section * blocks_a_head};
}
// What block x of the grid does; main blocks take items until none is left
__device__ __forceinline__ Item item_of(int x, const Order& p, int tiles) {
  auto pass_blocks = [&](int section) { return (2 * section_width(p, section) * tiles + HALVES - 1) / HALVES; };
#pragma unroll
  for (int s = 0; s < 2; s++) {
    if (x < pass_blocks(s)) return {1, s, section_width(p, s), x};
    x -= pass_blocks(s);
  }
  return {0, 0, 0, 0};
}

constexpr int TILE_STATS = 2 * 64 * 8 / 2;  // words of a tile in stats
// Three bfloat16s that add up to x, five zeros
__device__ __forceinline__ uint4 parts_of(float x) {
  const float high = bits_float(float_bits(x) & 0xffff0000u), rest = x - high,
              middle = bits_float(float_bits(rest) & 0xffff0000u);
  return make_uint4(float_bits(high) >> 16 | float_bits(middle), float_bits(rest - middle) >> 16, 0, 0);
}

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
    const float s = p.scale_log2;
    const bool nothing = l == -infinity() || l == infinity();  // a row that saw no key, or is none
    uint4* stat = reinterpret_cast<uint4*>(p.stats + (uint64_t)tile * TILE_STATS) + (half & 1) * 32 + row;
    stat[0] = parts_of(nothing ? (s > 0.f ? -3e38f : 3e38f) : -l / s);
    stat[64] = parts_of(row < rows ? -delta : 0.f);
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
