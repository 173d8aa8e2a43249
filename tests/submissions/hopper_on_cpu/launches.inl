// What a test calls, one function per kernel of the file under test; arguments as in the kernels, then how to run.
#ifndef BF16
#define BF16 0
#endif
const bool cpu::bf16 = BF16;
#ifdef FORWARD
// cuda_hopper, which has run on an H200: what the twin believes of fragments, descriptors, swizzles and barriers is what
// hardware did there.
#include "sm90.cuh"
template <int N> struct QK { static void mma(float (&d)[N / 2], uint32_t a, uint32_t b, int acc) { MmaSS<N, 0, 0>::mma(d, a, b, acc); } };
template <int D> struct PV { static void mma(float (&d)[D / 2], const uint32_t* a, uint32_t b) { MmaRS<D, 1>::mma(d, a, b, 1); } };
inline void named_sync(int id) { bar_sync(id, 256); }
inline void named_arrive(int id) {
  auto& b = cpu::named[id]; cpu::progress = true;
  if (++b.arrived == 256) { b.arrived = 0; b.generation++; }
}
template <int N> struct QKFromRegisters { static void mma(float (&d)[N / 2], const uint32_t* a, uint32_t b, int acc) { MmaRS<N, 0>::mma(d, a, b, acc); } };
inline void ldmatrix_x4(uint32_t* r, uint32_t row_smem) { load_matrices(r, row_smem); }
inline float rcp_approx(float x) { return 1.f / x; }
inline float rcp_or_nan(float x) { return x < 0x1p126f ? rcp_approx(x) : NAN; }
inline float log2_approx(float x) { return std::log2(x); }
inline uint32_t pack_two(float lo, float hi) { return pack_half2(lo, hi); }
inline uint32_t pack_rest(float lo, float hi) {
  const float2 p = unpack_half2(pack_half2(lo, hi));
  return pack_half2(lo - p.x, hi - p.y);
}
inline void stg_words_if(void* at, const uint32_t (&x)[4], int on) { if (on) std::memcpy(at, x, 16); }
inline int lds_lane0(uint32_t at, int lane0) { int v = 0; if (lane0) std::memcpy(&v, cpu::shared + cpu::check(at, 4), 4); return __shfl_sync(~0u, v, 0); }
inline void sts_if(uint32_t at, int v, int on) { if (on) std::memcpy(cpu::shared + cpu::check(at, 4), &v, 4); }
inline int atomicAdd(int* at, int x) { const int old = *at; *at += x; return old; }
inline void atomic_next_if(int& next, int* counter, int on) { if (on) next = (*counter)++; }
inline void __threadfence() {}
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __any_sync(unsigned, int x) {
  struct Mine { int x, any; } m{x, 0};
  cpu::together("vote", m, [](Mine** all) { int any = 0; for (int i = 0; i < 32; i++) any |= all[i]->x; for (int i = 0; i < 32; i++) all[i]->any = any; });
  return m.any;
}
inline float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { return __int_as_float((int)x); }
inline unsigned __float_as_uint(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
using std::fmaf;
using std::fmax;
struct int4 { int x, y, z, w; };
inline int4 lds_int4_lane0(uint32_t at, int lane0) { return {lds_lane0(at, lane0), lds_lane0(at + 4, lane0), lds_lane0(at + 8, lane0), lds_lane0(at + 12, lane0)}; }
inline void sts_int4_if(uint32_t at, int4 v, int on) { sts_if(at, v.x, on); sts_if(at + 4, v.y, on); sts_if(at + 8, v.z, on); sts_if(at + 12, v.w, on); }
#define blockDim cpu::Index{(unsigned)cpu::fibers.size()}
#define __shared__ static
#include "KERNEL_FILE"
extern "C" __attribute__((visibility("default"))) const char* run_forward(const TensorMap* maps, const Problem* problem, int blocks, int timing, int seed) {
  const Problem given = *problem;
  return cpu::launch(blocks, 128 * (Shape<HEADDIM, FULL_ONLY>::WGS + 1), timing, seed, [=] {
    attention_forward(maps[0], maps[1], maps[2], given);
  });
}
#if PACKED
extern "C" __attribute__((visibility("default"))) const char* run_list_blocks(const int* q_begin, const int* k_begin, int4* list, int sequences, int most) {
  return cpu::launch(1, 128, 0, 0, [=] { list_blocks(q_begin, k_begin, sequences, most, list); });
}
#endif
#else
#include "KERNEL_FILE"
#define EXPORT extern "C" __attribute__((visibility("default"))) const char*
#ifdef ORDERED   // cuda_hopper_backward_deterministic
#ifdef PASSES
EXPORT run_preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, float* stats, uint32_t* turns, int S, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 256, timing, seed, [=] { preprocess(o, d_o, lse, stats, turns, S); });
}
#elif defined(WIDE)
EXPORT run_dkdv(const TensorMap* maps, const float* stats, uint16_t* dk, uint16_t* dv, int S, int causal, float scale, float scale_log2, uint16_t* ds, const Part* part, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 384, timing, seed, [=] { dkdv(maps[0], maps[1], maps[2], maps[3], stats, dk, dv, S, causal, scale, scale_log2, ds, *part); });
}
EXPORT run_dq(const TensorMap* maps, const uint16_t* ds, float* sums, uint16_t* out, int S, int causal, float scale, const Part* part, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 384, timing, seed, [=] { dq(maps[1], ds, sums, out, S, causal, scale, *part); });
}
#endif
#elif defined(PASSES)
EXPORT run_preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, float* stats, float* dq_sum, uint32_t* counters, int S, int nheads, int n_counters, int first_cleared, const Strides* o_at, const Strides* do_at, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 256, timing, seed, [=] { preprocess(o, d_o, lse, stats, dq_sum, counters, S, nheads, n_counters, first_cleared, *o_at, *do_at); });
}
#endif
#if defined(PASSES) && HEADDIM == 128
EXPORT run_postprocess(const float* dq_sum, uint16_t* dq, float scale, int S, int nheads, const void* dq_at, int blocks, int timing, int seed) {
#ifdef ORDERED
  return cpu::launch(blocks, 256, timing, seed, [=] { postprocess(dq_sum, dq, scale, S); });
#else
  return cpu::launch(blocks, 256, timing, seed, [=] { postprocess(dq_sum, dq, scale, S, nheads, *static_cast<const Strides*>(dq_at)); });
#endif
}
#endif
#if defined(PASSES) && !defined(ORDERED)
EXPORT run_sum_group(const uint16_t* parts, uint16_t* dk, uint16_t* dv, int kv_heads, int group, int chunks, int kv_nheads, const Strides* dk_at, const Strides* dv_at, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 256, timing, seed, [=] { sum_group(parts, dk, dv, kv_heads, group, chunks, kv_nheads, *dk_at, *dv_at); });
}
#elif defined(WIDE) && !defined(ORDERED)
EXPORT run_dkdv(const TensorMap* maps, const float* stats, uint16_t* dk, uint16_t* dv, int S, int causal, float scale, float scale_log2, const Keys* keys, const Strides* dk_at, const Strides* dv_at, uint16_t* ds, const Part* part, int blocks, int threads, int timing, int seed) {
  return cpu::launch(blocks, threads, timing, seed, [=] { dkdv(maps[0], maps[1], maps[2], maps[3], stats, dk, dv, S, causal, scale, scale_log2, *keys, *dk_at, *dv_at, ds, *part); });
}
EXPORT run_dq(const TensorMap* maps, const uint16_t* ds, float* sums, uint16_t* out, int S, int causal, float scale, const Keys* keys, const Strides* dq_at, const Part* part, int blocks, int threads, int timing, int seed) {
  return cpu::launch(blocks, threads, timing, seed, [=] { dq(maps[1], ds, sums, out, S, causal, scale, *keys, *dq_at, *part); });
}
#endif
#ifdef PACKED
EXPORT run_find_edges(const int* begins, int count, int causal, int S, int* edges, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 128, timing, seed, [=] { find_edges(begins, count, causal, S, edges); });
}
#endif
#if !defined(PASSES) && !defined(WIDE)
EXPORT run_backward(const TensorMap* maps, const Params* params, int blocks, int threads, int timing, int seed) {
  const Params p = *params;
  return cpu::launch(blocks, threads, timing, seed, [=] { backward(maps[0], maps[1], maps[2], maps[3], p); });
}
#endif
#if defined(ITEMS) && !defined(ORDERED)
// kind, section, heads of the section and index of each block of a grid that does passes and of each item of the others
extern "C" __attribute__((visibility("default"))) void list_items(int heads, int section, int tiles, int kv_blocks, int blocks, int* out) {
  Passes p{}; p.heads = heads; p.section = section;
  for (int x = 0, main = 0; x < blocks; x++) {
    Item item = item_of(x, p, tiles, blocks);
    if (item.kind == MAIN) item = main_item(main++, p, kv_blocks);
    const int row[4] = {item.kind, item.section, item.wide, item.index};
    std::memcpy(out + 4 * x, row, 16);
  }
}
#endif
#endif
