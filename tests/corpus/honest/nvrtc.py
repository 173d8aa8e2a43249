"""CUDA compiled at run time by NVRTC and launched through the driver.

---
status: [PASSED]
needs_gpu: true
why: no compiler on disk, kernels that no file holds
language: cuda
needs:
  packages: [cuda.bindings]
"""

import ctypes
import os

import torch
from cuda.bindings import driver, nvrtc

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
"""
KERNELS = {}


def include_folder():
    for root in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        if os.path.exists(os.path.join(root, "include", "cuda_fp16.h")):
            return os.path.join(root, "include")
    raise RuntimeError("no cuda_fp16.h; install the CUDA toolkit")


def ok(answer):
    if int(answer[0]):
        raise RuntimeError(str(answer[0]))
    return answer[1] if len(answer) == 2 else answer[1:]


def compiled():
    if not KERNELS:
        torch.cuda.current_stream()
        major, minor = torch.cuda.get_device_capability()
        program = ok(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"attend.cu", 0, [], []))
        options = [
            f"--gpu-architecture=sm_{major}{minor}".encode(),
            f"-I{include_folder()}".encode(),
        ]
        ok(nvrtc.nvrtcCompileProgram(program, len(options), options))
        image = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
        ok(nvrtc.nvrtcGetCUBIN(program, image))
        KERNELS["module"] = ok(driver.cuModuleLoadData(image))
        KERNELS["attend"] = ok(driver.cuModuleGetFunction(KERNELS["module"], b"attend"))
    return KERNELS["attend"]


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    batch, heads, seqlen, headdim = q.shape
    scale = headdim**-0.5 if sm_scale is None else sm_scale
    out = torch.empty_like(q)
    values = (*(x.data_ptr() for x in (q, k, v, out)), seqlen, headdim, scale, int(causal))
    types = (ctypes.c_void_p,) * 4 + (ctypes.c_int, ctypes.c_int, ctypes.c_float, ctypes.c_int)
    stream = torch.cuda.current_stream().cuda_stream
    grid = ((seqlen + 63) // 64, batch * heads, 1)
    ok(driver.cuLaunchKernel(compiled(), *grid, 64, 1, 1, 0, stream, (values, types), 0))
    return out
