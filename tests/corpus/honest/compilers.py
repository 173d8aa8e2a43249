# Compilers at import and at the first call.


# %% compiles_in_cache
"""Compiles C with gcc into the cache it was given, and loads it with ctypes.

---
status: [PASSED]
why: compilers are subprocesses and write into the cache; a sandbox must allow both
needs_cpu: true
language: cuda
needs:
  tools: [gcc]
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch

SOURCE = r"""
#include <math.h>
#include <stdlib.h>
/* q, k, v, o: [rows of heads][s][d] floats */
void attend(const float *q, const float *k, const float *v, float *o,
            long heads, long s, long d, float scale, int causal) {
    float *w = malloc(s * sizeof(float));
    for (long h = 0; h < heads; h++, q += s * d, k += s * d, v += s * d, o += s * d)
        for (long i = 0; i < s; i++) {
            long keys = causal ? i + 1 : s;
            float peak = -INFINITY, total = 0;
            for (long j = 0; j < keys; j++) {
                float dot = 0;
                for (long c = 0; c < d; c++) dot += q[i * d + c] * k[j * d + c];
                w[j] = dot * scale;
                if (w[j] > peak) peak = w[j];
            }
            for (long j = 0; j < keys; j++) total += (w[j] = expf(w[j] - peak));
            for (long c = 0; c < d; c++) {
                float sum = 0;
                for (long j = 0; j < keys; j++) sum += w[j] * v[j * d + c];
                o[i * d + c] = sum / total;
            }
        }
    free(w);
}
"""


def build():
    cache = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())
    name = hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    path = os.path.join(cache, f"attend_{name}.so")
    if not os.path.exists(path):
        source = os.path.join(cache, f"attend_{name}.c")
        with open(source, "w") as file:
            file.write(SOURCE)
        command = ["gcc", "-O2", "-shared", "-fPIC", source, "-o", path + ".new", "-lm"]
        subprocess.run(command, check=True)
        os.rename(path + ".new", path)
    return ctypes.CDLL(path)


LIBRARY = build()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    host = [x.float().cpu().contiguous() for x in (q, k, v)]
    out = torch.empty_like(host[0])
    batch, heads, seqlen, headdim = q.shape
    LIBRARY.attend(
        *(ctypes.c_void_p(x.data_ptr()) for x in (*host, out)),
        *(ctypes.c_long(n) for n in (batch * heads, seqlen, headdim)),
        ctypes.c_float(scale),
        ctypes.c_int(causal),
    )
    return out.to(q.device, q.dtype)


# %% cpp_extension
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


# %% nvrtc
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


# %% torch_compile
"""The plain definition, compiled by torch.compile in the first call.

---
status: [PASSED]
needs_gpu: true
why: inductor compiles in worker processes and writes its cache
"""

import torch
from right_answer import attention

compiled = torch.compile(attention, dynamic=False)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return compiled(q, k, v, causal, sm_scale)
