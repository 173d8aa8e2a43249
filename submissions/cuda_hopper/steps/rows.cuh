// What every rung does to the 64 query rows of a warpgroup between its matrix products; frozen with the rungs.
//
// A wgmma leaves row lane / 4 of a warp's 16 rows in registers 0, 1, 4, 5, ... of each thread and row lane / 4 + 8 in
// 2, 3, 6, 7, ...; registers 4 j ... 4 j + 3 belong to columns 8 j + 2 (lane % 4) + {0, 1}.
#pragma once
#include "sm90.cuh"

struct Rows {                 // softmax state of a thread's two rows
  float m[2], l[2];           // running maximum (log2 units), running sum of this thread's columns
};

// The last kv row that each of the two rows may see, less this lane's first column.
struct Limits { int at[2]; };
template <bool CAUSAL> __device__ __forceinline__ Limits row_limits(int row, int S, int lane) {
  const int a = CAUSAL ? min(row, S - 1) : S - 1, b = CAUSAL ? min(row + 8, S - 1) : S - 1;
  return {{a - 2 * (lane & 3), b - 2 * (lane & 3)}};
}

// scores [64, 2 * NS] -> 2^(scores * scale - m); returns by how much each row of O and l must shrink.
template <int NS>
__device__ __forceinline__ void softmax_tile(float (&s)[NS], Rows& rows, float scale, Limits limits, int first_key,
                                             float (&shrink)[2]) {
#pragma unroll
  for (int i = 0; i < NS; i++) {
    const bool masked = i / 4 * 8 + (i & 1) > limits.at[i >> 1 & 1] - first_key;
    s[i] = masked ? -__int_as_float(0x7f800000) : s[i] * scale;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = rows.m[r];
#pragma unroll
    for (int i = 2 * r; i < NS; i += 4) high = fmaxf(high, fmaxf(s[i], s[i + 1]));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 1)); high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
    shrink[r] = exp2_approx(rows.m[r] - high); rows.m[r] = high;
    float sum = 0.f;
#pragma unroll
    for (int i = 2 * r; i < NS; i += 4) {
      s[i] = exp2_approx(s[i] - high); s[i + 1] = exp2_approx(s[i + 1] - high);
      sum += s[i] + s[i + 1];
    }
    rows.l[r] = rows.l[r] * shrink[r] + sum;
  }
}
template <int NS> __device__ __forceinline__ void pack_p(uint32_t (&p)[NS / 2], const float (&s)[NS]) {
#pragma unroll
  for (int i = 0; i < NS / 2; i++) p[i] = pack_half2(s[2 * i], s[2 * i + 1]);
}
template <int NO> __device__ __forceinline__ void scale_o(float (&o)[NO], const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < NO; i++) o[i] *= by[i >> 1 & 1];
}
// o / l -> memory, 16 bytes per lane; head_o points at row 0 of the head, [S, 2 * NO]
template <int NO>
__device__ __forceinline__ void store_rows(uint16_t* head_o, const float (&o)[NO], const Rows& rows, int row, int S,
                                           int lane) {
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float l = rows.l[r];
    l += __shfl_xor_sync(~0u, l, 1); l += __shfl_xor_sync(~0u, l, 2);
    inverse[r] = rcp_approx(l);
  }
#pragma unroll
  for (int j = 0; j < NO; j += 16) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = j + 4 * i + 2 * r;
        x[i] = pack_half2(o[at] * inverse[r], o[at + 1] * inverse[r]);
      }
      transpose_quad(x, lane);
      if (row + 8 * r < S) {
        uint16_t* const to = head_o + (uint64_t)(row + 8 * r) * (2 * NO) + j * 2 + (lane & 3) * 8;
        *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }
}
