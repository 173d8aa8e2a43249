// What every kernel here does to a 64-row accumulator: which element a register holds, masks, fragments, stores.
//
// A wgmma leaves row g = lane / 4 of a warp's 16 rows in registers 0, 1, 4, 5, ... of each lane and row g + 8 in 2, 3,
// 6, 7, ...; registers 4 j ... 4 j + 3 belong to columns 8 j + 2 (lane % 4) + {0, 1}. Packed to fp16 two by two,
// registers 8 j ... 8 j + 7 are the A operand of a product over columns 16 j ... 16 j + 15.
#pragma once
#include "sm90.cuh"

// 16-byte chunk of a row in a [rows, 64] panel with 128-byte swizzle
__device__ __forceinline__ uint32_t swizzled(uint32_t panel, int row, int chunk) {
  return panel + row * 128 + ((chunk ^ (row & 7)) << 4);
}

template <int N>
__device__ __forceinline__ void zero(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) x[i] = 0.f;
}
template <int N>
__device__ __forceinline__ void pack_rows(uint32_t (&p)[N / 2], const float (&s)[N]) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) p[i] = pack_half2(s[2 * i], s[2 * i + 1]);
}
// x * by -> memory, 16 bytes a lane; out: this thread's row, first column of the accumulator; pitch in elements; its
// other row is APART further
template <int APART = 8, int N>
__device__ __forceinline__ void store_rows(
    uint16_t* out, int pitch, const float (&x)[N], float by, int row, int S, int lane) {
#pragma unroll
  for (int j = 0; j < N; j += 16) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint32_t y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) y[i] = pack_half2(x[j + 4 * i + 2 * r] * by, x[j + 4 * i + 2 * r + 1] * by);
      transpose_quad(y, lane);  // now a lane holds 8 adjacent columns of 32
      if (row + APART * r < S)
        *reinterpret_cast<uint4*>(out + r * APART * pitch + j * 2 + (lane & 3) * 8) = make_uint4(y[0], y[1], y[2], y[3]);
    }
  }
}
