"""CUDA through torch.utils.cpp_extension: nvcc and ninja in the build.

---
status: [PASSED]
needs_gpu: true
why: 'the usual way to ship CUDA: a compiler, a linker and a .so in the cache'
language: cuda
needs:
  tools: [nvcc, ninja]
"""

import torch
import torch.utils.cpp_extension

SOURCE = r"""
// One thread per query row; q, k, v, o: [B*H, S, D] half, D <= 256.
#include <cuda_fp16.h>
extern "C" __global__ void attend(const __half *q, const __half *k, const __half *v, __half *o,
                                  int seqlen, int headdim, float scale, int causal) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= seqlen) return;
    long base = (long)blockIdx.y * seqlen * headdim;
    float acc[256], peak = -1e30f, total = 0.f;
    for (int c = 0; c < headdim; c++) acc[c] = 0.f;
    int keys = causal ? row + 1 : seqlen;
    for (int j = 0; j < keys; j++) {
        float dot = 0.f;
        for (int c = 0; c < headdim; c++)
            dot += __half2float(q[base + (long)row * headdim + c])
                 * __half2float(k[base + (long)j * headdim + c]);
        dot *= scale;
        float higher = fmaxf(peak, dot), shrink = expf(peak - higher), w = expf(dot - higher);
        total = total * shrink + w;
        for (int c = 0; c < headdim; c++)
            acc[c] = acc[c] * shrink + w * __half2float(v[base + (long)j * headdim + c]);
        peak = higher;
    }
    for (int c = 0; c < headdim; c++)
        o[base + (long)row * headdim + c] = __float2half(acc[c] / total);
}

#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
using torch::Tensor;
Tensor forward(Tensor q, Tensor k, Tensor v, double scale, bool causal) {
    auto out = torch::empty_like(q);
    int heads = q.size(0) * q.size(1), seqlen = q.size(2), headdim = q.size(3);
    auto half = [](Tensor &t) { return reinterpret_cast<__half *>(t.data_ptr()); };
    attend<<<dim3((seqlen + 63) / 64, heads), 64, 0, c10::cuda::getCurrentCUDAStream()>>>(
        half(q), half(k), half(v), half(out), seqlen, headdim, (float)scale, causal);
    return out;
}
"""
PROTOTYPE = """#include <torch/extension.h>
using torch::Tensor;
Tensor forward(Tensor q, Tensor k, Tensor v, double scale, bool causal);
"""
MODULE = torch.utils.cpp_extension.load_inline(
    "honest_extension", [PROTOTYPE], cuda_sources=[SOURCE], functions=["forward"]
)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    return MODULE.forward(q, k, v, scale, causal)
