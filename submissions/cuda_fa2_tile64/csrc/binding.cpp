// torch.ops.cuda_fa2_tile64.forward: checks, allocates, and calls the C interface of the kernels.
// The only file that sees torch's headers, and few of them: it compiles in seconds, not a minute.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <cmath>
#include <string>

#ifndef FA2_SOURCE_SHA
#define FA2_SOURCE_SHA "unknown"
#endif

extern "C" int fa2_tile64_fp16(const void*, const void*, const void*, void*, int, int, int, int,
                               float, int, cudaStream_t);
extern "C" int fa2_tile64_fp32(const void*, const void*, const void*, void*, int, int, int, int,
                               float, cudaStream_t);

namespace {

// q, k, v (batch, nheads, seqlen, headdim), fp16 or fp32; the result has q's shape and type
at::Tensor forward(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                   bool causal, double sm_scale) {
  TORCH_CHECK(q_in.is_cuda() && q_in.dim() == 4, "q must be a 4-d CUDA tensor (B, H, S, D)");
  TORCH_CHECK(k_in.sizes() == q_in.sizes() && v_in.sizes() == q_in.sizes(),
              "q, k and v must have one shape, got ", q_in.sizes(), ", ", k_in.sizes(), ", ",
              v_in.sizes());
  TORCH_CHECK(k_in.scalar_type() == q_in.scalar_type() && v_in.scalar_type() == q_in.scalar_type(),
              "q, k and v must have one dtype");
  const bool fp16 = q_in.scalar_type() == at::kHalf;
  TORCH_CHECK(fp16 || q_in.scalar_type() == at::kFloat, "dtype must be float16 or float32, got ",
              q_in.scalar_type());
  const int D = static_cast<int>(q_in.size(3));
  TORCH_CHECK(D == 64 || D == 128 || (fp16 && D == 256), "headdim must be 64 or 128",
              fp16 ? " or 256" : "", ", got ", D);
  const c10::cuda::CUDAGuard guard(q_in.device());
  // -inf is the mask: a negative scale would turn it round, so q takes the sign; 0 is made tiny
  const at::Tensor q = sm_scale < 0 ? q_in.neg().contiguous() : q_in.contiguous();
  const at::Tensor k = k_in.contiguous(), v = v_in.contiguous();
  const float scale = static_cast<float>(std::fmax(std::fabs(sm_scale), 1e-30));
  at::Tensor o = at::empty_like(q);
  if (q.numel() == 0) return o;
  const int heads = static_cast<int>(q.size(0) * q.size(1)), S = static_cast<int>(q.size(2));
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  const int error = fp16 ? fa2_tile64_fp16(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(),
                                           heads, S, D, causal, scale, 0, stream)
                         : fa2_tile64_fp32(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(),
                                           heads, S, D, causal, scale, stream);
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
  return o;
}

std::string source_sha() { return FA2_SOURCE_SHA; }

}  // namespace

TORCH_LIBRARY(cuda_fa2_tile64, m) {
  m.def("forward(Tensor q, Tensor k, Tensor v, bool causal, float sm_scale) -> Tensor");
  m.impl("forward", c10::DispatchKey::CUDA, TORCH_FN(forward));
  m.def("source_sha", source_sha);
}
