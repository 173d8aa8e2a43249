// One head of cuda_wmma_lab_backward on a CPU: wmma_backward_on_cpu SEQLEN CAUSAL SCALE < q k v o do lse.
// KERNEL is kernel.cu with its asm statements taken out; stdin and stdout are raw fp16, lse fp32.
#include "wmma_on_cpu.hpp"

#include <cstdio>

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
