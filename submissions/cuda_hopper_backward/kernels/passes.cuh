// The two short passes around the backward without launches and time of their own: spare warps of the main blocks do them for other heads.
//
// A grid walks sections of heads, blocks start in the order of their index:
//     first blocks  preprocess sections 0 and 1
//     main blocks   take items (a kv block of a head) of section 0, 1, 2, ... from a counter; spare warps preprocess section s + 2 and
//                   postprocess section s - 2 beside those of section s
//     last blocks   postprocess the last two sections
// preprocess  what main needs of o and lse; dq sums <- 0          postprocess  dq out of its sums
// Who needs something waits until `done` says that it is there. It waits for first blocks and for items taken before only, whose spare warps
// preprocess first, which waits for nothing; so nobody waits for ever, whatever else runs on the GPU.
//
// Shapes   o, do, dq [heads, S, D] fp16, lse [heads, S] float32, natural logarithm. T = ceil(S / 64) tiles of 64 query rows
//          stats [heads, T, 2, 64, 8] bfloat16: -lse / scale, then -delta, delta = rowsum(do * o), each as three parts that add up to it: a product
//          adds them to scores and dP (MmaColumns). Rows past S hold -3e38 (times the sign of scale) and 0, so that their P and dS are 0
//          dq_sum [heads, T, 64 * D] float32, a tile in the order of the accumulators: see postprocess
//          done [sections, 2] uint32, zero at launch: half tiles that are preprocessed, items that are through; then items taken
#pragma once
#include "rows.cuh"


struct Passes {
  const uint16_t* o;     // [heads, seqlen, D], like d_o and dq
  const uint16_t* d_o;
  const float* lse;      // [heads, seqlen]
  float* stats;          // TILE_STATS words a tile
  float* dq_sum;
  uint16_t* dq;
  uint32_t* done;
  Strides o_at, do_at;   // GENERAL: o and d_o may lie anywhere
  int seqlen;
  int heads;             // batch * heads
  int section;           // heads that are walked together, so that their q, do and dq_sum stay in L2
  int nheads;            // of one batch
  float scale;           // softmax scale
  float scale_log2;      // times log2(e); never 0, for lse is divided by it
};

constexpr int TILE_STATS = 2 * 64 * 8 / 2;               // words of a tile in stats
enum Kind { FIRST, MAIN, LAST };
struct Item {
  Kind kind;
  int section, wide;     // which section of heads, how many heads it has
  int index;             // of this block among the section's blocks of its kind
};

#ifndef PASS_WARPS
#define PASS_WARPS 16        // of a block of the kernel that includes this
#endif
constexpr int HALVES = PASS_WARPS;   // half tiles of a first or last block: one for each of its warps
__device__ __forceinline__ int section_width(const Passes& p, int section) { return max(0, min(p.section, p.heads - section * p.section)); }

// Which kv block of which head item `x` is: kv block 0 of each head of a section, then kv block 1, ...: the longest first if causal
__device__ __forceinline__ Item main_item(int x, const Passes& p, int blocks_a_head) {
  const int section = x / (p.section * blocks_a_head);
  return {MAIN, section, section_width(p, section), x - section * p.section * blocks_a_head};
}
__device__ __forceinline__ int sections_of(const Passes& p) { return (p.heads + p.section - 1) / p.section; }
// What block x of a grid of `grid` blocks does; main blocks take items until there are none left
__device__ __forceinline__ Item item_of(int x, const Passes& p, int tiles, int grid) {
  const int s = max(sections_of(p) - 2, 0);
  auto pass_blocks = [&](int section) { return (2 * section_width(p, section) * tiles + HALVES - 1) / HALVES; };
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (x < pass_blocks(i)) return {FIRST, i, section_width(p, i), x};
    x -= pass_blocks(i);
    grid -= pass_blocks(i);
  }
  const int main_blocks = grid - pass_blocks(s) - pass_blocks(s + 1);
  if (x < main_blocks) return {MAIN, 0, 0, x};
  x -= main_blocks;
  if (x < pass_blocks(s)) return {LAST, s, section_width(p, s), x};
  return {LAST, s + 1, section_width(p, s + 1), x - pass_blocks(s)};
}

// Three bfloat16s that add up to x, five zeros
__device__ __forceinline__ uint4 parts_of(float x) {
  const float high = bits_float(float_bits(x) & 0xffff0000u), rest = x - high, middle = bits_float(float_bits(rest) & 0xffff0000u);
  return make_uint4(float_bits(high) >> 16 | float_bits(middle), float_bits(rest - middle) >> 16, 0, 0);
}

// One warp's passes over half tiles (32 query rows): `space`, 8 KB of shared memory and a barrier, are this warp's
template <int D> struct PassWarp {
  static constexpr int HALF_BYTES = 32 * D * 4;                  // 32 rows of o and of do, or of sums
  // of the barrier, in its lowest bit; the rest is its owner's
  const Passes& p; uint32_t space, full; int lane, tiles; uint32_t parity = 0;

  // half tile `half`, counted over all heads: stats <- o, do, lse; dq sums <- 0
  __device__ __forceinline__ void preprocess(int half) {
    static_assert(D == 64, "a row is 8 lanes of 16 bytes");
    const int tile = half >> 1, head = tile / tiles, row0 = (half - head * tiles * 2) * 32, rows = min(32, p.seqlen - row0);
    const uint64_t first = (uint64_t)head * p.seqlen + row0;
    if (GENERAL && rows > 0) {                                   // a lane a row
      const int batch = head / p.nheads, in_batch = head - batch * p.nheads;
      mbar_expect_if(full, 2 * rows * D * 2, lane == 0); __syncwarp();
      bulk_load_if(space + lane * D * 2, p.o + batch * p.o_at.batch + in_batch * p.o_at.head + (row0 + lane) * p.o_at.row, D * 2, full, lane < rows);
      bulk_load_if(space + HALF_BYTES / 2 + lane * D * 2, p.d_o + batch * p.do_at.batch + in_batch * p.do_at.head + (row0 + lane) * p.do_at.row, D * 2, full, lane < rows);
    } else if (rows > 0) {
      mbar_expect_if(full, 2 * rows * D * 2, lane == 0);
      bulk_load_if(space, p.o + first * D, rows * D * 2, full, lane == 0);
      bulk_load_if(space + HALF_BYTES / 2, p.d_o + first * D, rows * D * 2, full, lane == 0);
    }
    const int row = 4 * (lane & 7) + (lane >> 3);                // the row whose sum this lane keeps
    float l = row < rows ? p.lse[first + row] * 1.4426950408889634f : infinity(), delta = 0.f;
    float4* sums = reinterpret_cast<float4*>(p.dq_sum + (uint64_t)half * 32 * D) + lane;
#pragma unroll
    for (int i = 0; i < D / 4; i++) sums[i * 32] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (rows > 0) {
      mbar_wait(full, parity & 1); parity ^= 1;
#pragma unroll 2
      for (int i = 0; i < 8; i++) {                              // 4 rows at a time, 8 lanes a row
        uint32_t x[4], y[4]; float sum = 0.f;
        lds_words(x, space + (i * 32 + lane) * 16); lds_words(y, space + HALF_BYTES / 2 + (i * 32 + lane) * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float2 u = unpack_half2(x[j]), v = unpack_half2(y[j]);
          sum = fmaf(u.x, v.x, sum); sum = fmaf(u.y, v.y, sum);
        }
#pragma unroll
        for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if ((lane & 7) == i) delta = sum;
      }
    }
    const float s = p.scale_log2;
    const bool nothing = l == -infinity() || l == infinity();    // a row that saw no key, or is none
    uint4* stat = reinterpret_cast<uint4*>(p.stats + (uint64_t)tile * TILE_STATS) + (half & 1) * 32 + row;
    stat[0] = parts_of(nothing ? (s > 0.f ? -3e38f : 3e38f) : -l / s);
    stat[64] = parts_of(row < rows ? -delta : 0.f);
    __syncwarp();
  }

  // dq <- dq sums of half tile `half`. A tile is [8][D / 16][32][4] floats: [w][i / 4][lane][i % 4], w = 4 (query column / 32) + D row / 16, register i of a
  // lane being D row lane / 4 + 8 (i / 2 % 2), query column 8 (i / 4) + 2 (lane % 4) + i % 2 of the 16 rows and 32 columns of w
  __device__ __forceinline__ void postprocess(int half) {
    const int tile = half >> 1, head = tile / tiles, row0 = (half - head * tiles * 2) * 32, rows = min(32, p.seqlen - row0);
    if (rows <= 0) return;
    mbar_expect_if(full, HALF_BYTES, lane == 0);
    bulk_load_if(space, p.dq_sum + (uint64_t)half * 32 * D, HALF_BYTES, full, lane == 0);
    // two rows, 8 of 16 columns of dq
    const int j = lane >> 3, quad = lane >> 1 & 3, upper = lane & 1, row = 8 * j + 2 * quad;
    uint16_t* out = p.dq + ((uint64_t)head * p.seqlen + row0 + row) * D + 8 * upper;
    mbar_wait(full, parity & 1); parity ^= 1;
#pragma unroll 1
    for (int w = 0; w < D / 16; w++) {
      float2 x[8]; uint32_t y[4];
#pragma unroll
      for (int r = 0; r < 8; r++) x[r] = lds_float2(space + ((w * 4 + j) * 32 + r * 4 + quad) * 16 + upper * 8);
#pragma unroll
      for (int r = 0; r < 4; r++) y[r] = pack_half2(x[2 * r].x * p.scale, x[2 * r + 1].x * p.scale);
      if (row < rows) *reinterpret_cast<uint4*>(out + 16 * w) = make_uint4(y[0], y[1], y[2], y[3]);
#pragma unroll
      for (int r = 0; r < 4; r++) y[r] = pack_half2(x[2 * r].y * p.scale, x[2 * r + 1].y * p.scale);
      if (row + 1 < rows) *reinterpret_cast<uint4*>(out + D + 16 * w) = make_uint4(y[0], y[1], y[2], y[3]);
    }
    __syncwarp();
  }

  // Share `index` of `shares` of a section's half tiles, this warp's part of it
  template <class Do> __device__ __forceinline__ int share(int section, int index, int shares, int warp, int warps, Do action) {
    const int all = 2 * section_width(p, section) * tiles, base = 2 * section * p.section * tiles;
    const int end = (int)((uint64_t)all * (index + 1) / shares);
    int count = 0;
#pragma unroll 1
    for (int half = (int)((uint64_t)all * index / shares) + warp; half < end; half += warps) action(base + half), count++;
    return count;
  }
  __device__ __forceinline__ void preprocess_share(int section, int index, int shares, int warp, int warps) {
    const int count = share(section, index, shares, warp, warps, [&](int half) { preprocess(half); });
    if (count && lane == 0) counter_add(p.done + 2 * section, count);
  }
  __device__ __forceinline__ void postprocess_share(int section, int index, int shares, int warp, int warps, int blocks_a_head) {
    if (section < 0) return;
    counter_wait(p.done + 2 * section + 1, section_width(p, section) * blocks_a_head); proxy_fence_global();
    share(section, index, shares, warp, warps, [&](int half) { postprocess(half); });
  }
};
