// One head of cuda_wmma_lab_backward on a CPU: wmma_backward_on_cpu SEQLEN CAUSAL SCALE < q k v o do lse.
// KERNEL is kernel.cu with its asm statements taken out; stdin and stdout are raw fp16, lse fp32.
//
// As much of CUDA and nvcuda::wmma as one thread block of a wmma kernel needs, on a CPU: every CUDA thread
// is a fiber, a barrier hands over to the next one. The element order of a fragment is deliberately not
// NVIDIA's (element e of lane l is number 32 e + l of the 16 x 16 matrix): a kernel that relies on the
// opaque layout fails here.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__
#define __shared__

struct Index {
  int x, y, z;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint4 {
  uint32_t x, y, z, w;
};
using __half = _Float16;
struct __half2 {
  __half x, y;
};
inline __half2 __floats2half2_rn(float a, float b) { return {static_cast<__half>(a), static_cast<__half>(b)}; }
inline float2 __half22float2(__half2 h) { return {static_cast<float>(h.x), static_cast<float>(h.y)}; }
inline float __int_as_float(int i) {
  float f;
  std::memcpy(&f, &i, 4);
  return f;
}

// ------------------------------------------------------------------------------------------ fibers
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
};
struct Barrier {
  int arrived = 0, turn = 0;
};
inline std::vector<Fiber>* fibers;
inline ucontext_t scheduler;
inline int current;
inline Barrier block_barrier, warp_barriers[32];
inline std::function<void()> body;
inline Index threadIdx, blockIdx;
alignas(1024) inline unsigned char raw[228 * 1024];
inline uint64_t exchange[32][32 * 16];

inline void hand_over() { swapcontext(&(*fibers)[current].context, &scheduler); }
inline void wait_at(Barrier& barrier, int threads) {
  const int turn = barrier.turn;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.turn;
  }
  while (barrier.turn == turn) hand_over();
}
inline void __syncthreads() { wait_at(block_barrier, static_cast<int>(fibers->size())); }
inline void __syncwarp() { wait_at(warp_barriers[current / 32], 32); }
inline float __shfl_xor_sync(unsigned, float value, int step) {
  uint64_t* room = exchange[current / 32];
  __syncwarp();
  std::memcpy(&room[current % 32], &value, 4);
  __syncwarp();
  float other;
  std::memcpy(&other, &room[(current % 32) ^ step], 4);
  return other;
}

inline void enter() {
  body();
  (*fibers)[current].done = true;
  hand_over();
}

// runs `kernel` as block (x, y) of `threads`
inline void run_block(int x, int y, int threads, const std::function<void()>& kernel) {
  std::vector<Fiber> all(threads);
  fibers = &all;
  body = kernel;
  blockIdx = {x, y, 0};
  block_barrier = {};
  for (Barrier& barrier : warp_barriers) barrier = {};
  std::memset(raw, 0xff, sizeof raw);  // NaN: nothing may be read before it is written
  for (Fiber& fiber : all) {
    fiber.stack.resize(256 * 1024);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  for (int left = threads; left > 0;) {
    left = 0;
    for (current = 0; current < threads; ++current) {
      if (all[current].done) continue;
      threadIdx = {current, 0, 0};
      swapcontext(&scheduler, &all[current].context);
      left += !all[current].done;
    }
  }
}

// -------------------------------------------------------------------------------------------- wmma
namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static constexpr int num_elements = 8;
  T x[8];
};
inline int place(int e) { return 32 * e + current % 32; }  // of element e of this lane
template <class F, class V>
void fill_fragment(F& f, V value) {
  for (auto& x : f.x) x = value;
}
template <class F, class T>
void load(F& f, const T* from, unsigned ld, bool rows) {
  if (reinterpret_cast<uintptr_t>(from) % 32) std::abort();  // wmma wants 256 bits
  for (int e = 0; e < 8; ++e) {
    const int i = place(e) / 16, j = place(e) % 16;
    f.x[e] = from[rows ? i * ld + j : j * ld + i];
  }
}
template <class U, class T, class L>
void load_matrix_sync(fragment<U, 16, 16, 16, T, L>& f, const T* from, unsigned ld) {
  __syncwarp();
  load(f, from, ld, std::is_same<L, row_major>::value);
}
inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float>& f, const float* from,
                             unsigned ld, layout_t layout) {
  __syncwarp();
  load(f, from, ld, layout == mem_row_major);
}
inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& f,
                              unsigned ld, layout_t layout) {
  for (int e = 0; e < 8; ++e) {
    const int i = place(e) / 16, j = place(e) % 16;
    to[layout == mem_row_major ? i * ld + j : j * ld + i] = f.x[e];
  }
}
template <class C, class A, class B>
void mma_sync(C& d, const A& a, const B& b, const C& c) {
  float* room = reinterpret_cast<float*>(exchange[current / 32]);  // a, then b: 512 floats
  __syncwarp();
  for (int e = 0; e < 8; ++e) {
    room[place(e)] = static_cast<float>(a.x[e]);
    room[256 + place(e)] = static_cast<float>(b.x[e]);
  }
  __syncwarp();
  for (int e = 0; e < 8; ++e) {
    const int i = place(e) / 16, j = place(e) % 16;
    float sum = c.x[e];
    for (int k = 0; k < 16; ++k) sum += room[i * 16 + k] * room[256 + k * 16 + j];
    d.x[e] = sum;
  }
  __syncwarp();
}
}  // namespace wmma
}  // namespace nvcuda

inline void copy_now(void* to, const void* from, bool inside) {
  if (inside)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
#include KERNEL

int main(int, char** argv) {
  const int S = std::atoi(argv[1]), causal = std::atoi(argv[2]);
  const float scale = std::atof(argv[3]);
  const int padded = (S + ROWS - 1) / ROWS * ROWS;
  std::vector<std::vector<__half>> in(5, std::vector<__half>(S * D)), out(3, std::vector<__half>(S * D));
  std::vector<float> lse(S), lse_log2(padded), delta(padded);
  for (auto& tensor : in)
    if (std::fread(tensor.data(), 2, tensor.size(), stdin) != tensor.size()) return 1;
  if (std::fread(lse.data(), 4, lse.size(), stdin) != lse.size()) return 1;
  const __half *q = in[0].data(), *k = in[1].data(), *v = in[2].data(), *o = in[3].data();
  const __half* d_o = in[4].data();
  const float log2_e = 1.4426950408889634f;
  for (int x = 0; x < padded / WARPS; ++x)
    run_block(x, 0, THREADS, [&] {
      wmma_lab_statistics(o, d_o, lse.data(), lse_log2.data(), delta.data(), S, padded);
    });
  for (int x = 0; x < padded / ROWS; ++x) {
    run_block(x, 0, THREADS, [&] {
      wmma_lab_keys(q, k, v, d_o, lse_log2.data(), delta.data(), out[1].data(), out[2].data(), S,
                    scale, scale * log2_e, causal);
    });
    run_block(x, 0, THREADS, [&] {
      wmma_lab_queries(q, k, v, d_o, lse_log2.data(), delta.data(), out[0].data(), S, scale,
                       scale * log2_e, causal);
    });
  }
  if (sizeof(Shared) > sizeof raw) return 2;
  for (auto& tensor : out) std::fwrite(tensor.data(), 2, tensor.size(), stdout);
  std::fprintf(stderr, "%zu\n", sizeof(Shared));
}
