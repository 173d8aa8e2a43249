// What a test calls, one function per kernel of the file under test; arguments as in the kernels, then how to run.
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
