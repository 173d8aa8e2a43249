// What a test calls, one function per kernel of the file under test; arguments as in the kernels, then how to run.
#include "KERNEL_FILE"
#define EXPORT extern "C" __attribute__((visibility("default"))) const char*
#ifdef PASSES
EXPORT run_preprocess(const uint16_t* o, const uint16_t* d_o, const float* lse, float* stats, float* dq_sum, int S, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 256, timing, seed, [=] { preprocess(o, d_o, lse, stats, dq_sum, S); });
}
EXPORT run_postprocess(const float* dq_sum, uint16_t* dq, float scale, int S, int blocks, int timing, int seed) {
  return cpu::launch(blocks, 256, timing, seed, [=] { postprocess(dq_sum, dq, scale, S); });
}
#elif defined(TWO_KERNELS)
EXPORT run_dkdv(const TensorMap* maps, const float* stats, uint16_t* dk, uint16_t* dv, int S, int causal, float scale, float scale_log2, int blocks, int threads, int timing, int seed) {
  return cpu::launch(blocks, threads, timing, seed, [=] { dkdv(maps[0], maps[1], maps[2], maps[3], stats, dk, dv, S, causal, scale, scale_log2); });
}
EXPORT run_dq(const TensorMap* maps, const float* stats, uint16_t* out, int S, int causal, float scale, float scale_log2, int blocks, int threads, int timing, int seed) {
  return cpu::launch(blocks, threads, timing, seed, [=] { dq(maps[0], maps[1], maps[2], maps[3], stats, out, S, causal, scale, scale_log2); });
}
#else
EXPORT run_backward(const TensorMap* maps, const Params* params, int blocks, int threads, int timing, int seed) {
  const Params p = *params;
  return cpu::launch(blocks, threads, timing, seed, [=] { backward(maps[0], maps[1], maps[2], maps[3], p); });
}
#endif
