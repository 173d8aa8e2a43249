// The two short passes around the backward as blocks of the main kernel's own grid: one launch, and their bytes move while tensor cores work.
//
// A grid walks sections of heads. Blocks start in the order of their index, so the order below is all the scheduling there is:
//     preprocess 0, preprocess 1, main 0, preprocess 2, main 1, postprocess 0, preprocess 3, main 2, postprocess 1, ...
// preprocess  what main needs of o and lse; dq sums <- 0; k, v and q of the section towards L2
// main        waits until its section's preprocess blocks have signed `done`, adds to dq_sum, signs
// postprocess waits until its section's main blocks have signed; dq out of the sums. A section later, so that it seldom waits
// A block waits for blocks of smaller index only, which have started and wait, if at all, for smaller ones yet.
//
// Shapes   o, do, dq [heads, S, D] fp16, lse [heads, S] float32, natural logarithm. T = ceil(S / 64) tiles of 64 query rows
//          stats [heads, T, 2, 64] float32: lse * log2(e), then delta = rowsum(do * o), columns in the order of stat_place; rows past S hold
//          +inf and 0, so that their P and dS are 0
//          dq_sum [heads, T, 64 * D] float32, a tile in the order of the accumulators: dq_place
//          done [sections, 2] uint32, zero at launch: preprocess and main blocks that are through
#pragma once
#include "sm90.cuh"

#ifndef PREFETCH
#define PREFETCH 1
#endif
struct Passes {
  const uint16_t* q;     // [heads, seqlen, D] fp16, like k, v, o, d_o and dq
  const uint16_t* k;
  const uint16_t* v;
  const uint16_t* o;
  const uint16_t* d_o;
  const float* lse;      // [heads, seqlen]
  float* stats;
  float* dq_sum;
  uint16_t* dq;
  uint32_t* done;
  int seqlen;
  int heads;             // batch * heads
  int section;           // heads that are walked together, so that their q, do and dq_sum stay in L2
  float scale;           // softmax scale
};

enum Kind { PREPROCESS, MAIN, POSTPROCESS };
struct Item {
  Kind kind;
  int section, wide;     // which section of heads, how many heads it has
  int index;             // of this block among the section's blocks of its kind
};

constexpr int PASS_THREADS = 256;   // of a block with as many or more
// Tiles that a block of the passes takes: 64 KB of fp16, 128 KB of sums, 128 registers a thread of loads in flight
template <int D> constexpr int PASS_TILES = 512 / D;
template <int D> __device__ __forceinline__ int pass_blocks(int wide, int tiles) { return (wide * tiles + PASS_TILES<D> - 1) / PASS_TILES<D>; }

// What block x of the grid does. Stage s of the order above: preprocess s, main s - 1, postprocess s - 2; all but the last stages are alike
template <int D> __device__ __forceinline__ Item item_of(int x, const Passes& p, int tiles, int main_blocks_a_head) {
  const int sections = (p.heads + p.section - 1) / p.section, parts = pass_blocks<D>(p.section, tiles);
  const int step = 2 * parts + p.section * main_blocks_a_head;
  int stage = min(x < parts ? 0 : x < step ? 1 : x / step + 1, sections - 1);
  x -= stage == 0 ? 0 : stage == 1 ? parts : (stage - 1) * step;
#pragma unroll 1
  for (;; stage++) {
#pragma unroll 1
    for (int kind = PREPROCESS; kind <= POSTPROCESS; kind++) {
      const int section = stage - kind;
      if (section < 0 || section >= sections) continue;
      const int wide = min(p.section, p.heads - section * p.section);
      const int blocks = kind == MAIN ? wide * main_blocks_a_head : pass_blocks<D>(wide, tiles);
      if (x < blocks) return {(Kind)kind, section, wide, x};
      x -= blocks;
    }
  }
}

// Query column c of a tile in stats: a lane of a quad reads the columns of two registers' worth of 8 with one load of 16 bytes
__device__ __forceinline__ int stat_place(int c) { return (c & ~15) + (c >> 1 & 3) * 4 + (c >> 3 & 1) * 2 + (c & 1); }

template <int D> __device__ __forceinline__ void preprocess_rows(const Passes& p, const Item& item, int tiles) {
  constexpr int LANES = D / 8, ROWS = PASS_THREADS / LANES, LOADS = PASS_TILES<D> * 64 / ROWS;   // 16 bytes a lane; rows of the block's threads together
  const int first = item.section * p.section * tiles + item.index * PASS_TILES<D>;      // tiles are counted over all heads
  const int last = min(first + PASS_TILES<D>, (item.section * p.section + item.wide) * tiles);
  const int lane_row = threadIdx.x / LANES, lane_column = threadIdx.x % LANES * 8;
  uint4 a[LOADS], b[LOADS]; float l[LOADS];
  int tile = first, head = first / tiles, row0 = (first - head * tiles) * 64;
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const int row = row0 + i * ROWS % 64 + lane_row;
    const bool in = tile < last && row < p.seqlen;
    const uint64_t at = (uint64_t)head * p.seqlen + row;
    a[i] = b[i] = make_uint4(0, 0, 0, 0); l[i] = infinity();
    if (in) {
      a[i] = load_once(p.o + at * D + lane_column); b[i] = *reinterpret_cast<const uint4*>(p.d_o + at * D + lane_column);
      if (lane_column == 0) l[i] = p.lse[at] * 1.4426950408889634f;
    }
    if ((i + 1) * ROWS % 64 == 0) {
      if (PREFETCH && threadIdx.x == 0 && tile < last) {
        const uint64_t rows = (uint64_t)head * p.seqlen + row0; const int bytes = min(64, p.seqlen - row0) * D * 2;
        prefetch_l2(p.k + rows * D, bytes); prefetch_l2(p.v + rows * D, bytes); prefetch_l2(p.q + rows * D, bytes);
      }
      tile++; row0 += 64;
      if (row0 >= p.seqlen) row0 = 0, head++;
    }
  }
  float4* zeros = reinterpret_cast<float4*>(p.dq_sum + (uint64_t)first * 64 * D);
  for (int i = threadIdx.x; i < (last - first) * 16 * D; i += PASS_THREADS) zeros[i] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const uint32_t x[4] = {a[i].x, a[i].y, a[i].z, a[i].w}, y[4] = {b[i].x, b[i].y, b[i].z, b[i].w};
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 u = unpack_half2(x[j]), v = unpack_half2(y[j]);
      sum = fmaf(u.x, v.x, sum); sum = fmaf(u.y, v.y, sum);
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const int of = first + i * ROWS / 64, in_tile = i * ROWS % 64 + lane_row;
    if (lane_column == 0 && of < last) {
      float* stat = p.stats + (uint64_t)of * 128 + stat_place(in_tile);
      stat[0] = l[i] == -infinity() ? infinity() : l[i]; stat[64] = sum;   // -inf: a row that saw no key
    }
  }
}
template <int D> __device__ __forceinline__ void preprocess_block(const Passes& p, const Item& item, int tiles) {
  if (threadIdx.x < PASS_THREADS) preprocess_rows<D>(p, item, tiles);
  __syncthreads();
  if (threadIdx.x == 0) counter_add(p.done + 2 * item.section);
}

// dq_sum, a tile: warp w of 8 holds D rows 16 (w % 4) ... + 15 (of half w / 4 if D = 128) and all 64 query columns (D = 64: half w / 4 of them);
// [w][i / 4][lane][i % 4], register i of a lane being D row lane / 4 + 8 (i / 2 % 2), query column 8 (i / 4) + 2 (lane % 4) + i % 2
template <int D> __device__ __forceinline__ void postprocess_block(const Passes& p, const Item& item, int tiles, int main_blocks_a_head, uint8_t* smem) {
  constexpr int REGS = D / 4, PITCH = D + 8, TILES = PASS_TILES<D>;       // registers a lane held; halves from row to row in shared memory
  uint16_t* const out = reinterpret_cast<uint16_t*>(smem);                // [TILES][64][PITCH]
  const int first = item.section * p.section * tiles + item.index * TILES;
  const int last = min(first + TILES, (item.section * p.section + item.wide) * tiles);
  if (threadIdx.x < PASS_THREADS) {
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int d = 16 * (w & 3) + lane / 4 + (D == 128 ? 64 * (w / 4) : 0), column = 2 * (lane & 3) + (D == 64 ? 32 * (w / 4) : 0);
    const float4* source = reinterpret_cast<const float4*>(p.dq_sum + (uint64_t)first * 64 * D) + w * REGS * 8 + lane;
    counter_wait(p.done + 2 * item.section + 1, item.wide * main_blocks_a_head);
    float4 x[TILES][REGS / 4];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int j = 0; j < REGS / 4; j++) x[t][j] = first + t < last ? load_shared_sum(source + t * 16 * D + j * 32) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int j = 0; j < REGS / 4; j++) {
        const uint32_t low = pack_half2(x[t][j].x * p.scale, x[t][j].y * p.scale), high = pack_half2(x[t][j].z * p.scale, x[t][j].w * p.scale);   // D rows d and d + 8
        uint16_t* at = out + (t * 64 + column + 8 * j) * PITCH + d;
        at[0] = (uint16_t)low; at[PITCH] = (uint16_t)(low >> 16); at[8] = (uint16_t)high; at[PITCH + 8] = (uint16_t)(high >> 16);
      }
  }
  __syncthreads();
  for (int t = 0; t < last - first; t++) {
    const int head = (first + t) / tiles, row0 = (first + t - head * tiles) * 64;
#pragma unroll
    for (int i = threadIdx.x; i < 8 * D; i += blockDim.x) {
      const int row = i / (D / 8), chunk = i % (D / 8);
      if (row0 + row < p.seqlen)
        *reinterpret_cast<uint4*>(p.dq + ((uint64_t)head * p.seqlen + row0 + row) * D + chunk * 8) = *reinterpret_cast<const uint4*>(out + (t * 64 + row) * PITCH + chunk * 8);
    }
  }
}
