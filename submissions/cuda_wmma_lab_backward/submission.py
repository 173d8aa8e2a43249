"""Attention backward for the lab: compiles `kernel.cu` (NVRTC, cached on disk) and launches it.

Three launches on torch's current stream: row statistics, then dK and dV, then dQ. fp16, headdim 64 and 128.
"""

import ctypes
import functools
import hashlib
import importlib.util
import math
import os
import shutil
import tempfile
from pathlib import Path

import torch
from cuda.bindings import driver, nvrtc

SOURCE = Path(__file__).resolve().parent / "kernel.cu"
ROWS, WARPS, THREADS = 64, 4, 128  # the constants of kernel.cu
HEADDIMS = (64, 128)
LOG2_E = math.log2(math.e)
KERNELS = (b"wmma_lab_statistics", b"wmma_lab_keys", b"wmma_lab_queries")


def smem_bytes(headdim):
    """sizeof(Shared) of kernel.cu."""
    tiles = (2 + 2 * 2) * ROWS * (headdim + 8) * 2
    return tiles + 2 * 2 * ROWS * 4 + 16 * 4 + WARPS * (16 * 20 * 4 + 16 * 24 * 2)


def _ok(result):
    """Unwraps a (status, value...) tuple of cuda.bindings; raises RuntimeError on any failure."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"cuda_wmma_lab_backward: CUDA call failed with {status!r}")
    return values[0] if len(values) == 1 else values


def _include_dirs():
    """Where cuda_fp16.h and mma.h lie: a toolkit, or NVIDIA's wheels."""
    roots = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    if shutil.which("nvcc"):
        roots.insert(1, str(Path(shutil.which("nvcc")).resolve().parent.parent))
    spec = importlib.util.find_spec("nvidia")
    for wheel in (spec.submodule_search_locations or ()) if spec else ():
        roots += [f"{wheel}/cu13", f"{wheel}/cuda_runtime"]
    for root in filter(None, roots):
        include = Path(root) / "include"
        if (include / "mma.h").is_file():
            return [include, *(folder for folder in [include / "cccl"] if folder.is_dir())]
    raise RuntimeError(
        "cuda_wmma_lab_backward: nvrtc needs mma.h and cuda_fp16.h; "
        "set CUDA_HOME or: pip install nvidia-cuda-runtime nvidia-cuda-crt"
    )


def compile_cubin(headdim, arch):
    """The machine code of the three kernels for one headdim, from the cache folder or compiled now."""
    flags = [f"-arch={arch}", "-std=c++17", f"-DHEADDIM={headdim}"]
    text = SOURCE.read_bytes()
    key = hashlib.sha256(repr((flags, _ok(nvrtc.nvrtcVersion()))).encode() + text).hexdigest()
    cache = Path(os.environ.get("ATTNBOARD_CACHE") or Path(tempfile.gettempdir()) / "attnboard")
    path = cache / "cuda_wmma_lab_backward" / f"{key[:32]}.cubin"
    if not path.exists():
        program = _ok(nvrtc.nvrtcCreateProgram(text, SOURCE.name.encode(), 0, [], []))
        options = [flag.encode() for flag in [*flags, *(f"-I{d}" for d in _include_dirs())]]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status) != 0:
            log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{SOURCE}: NVRTC failed\n{bytes(log).decode()}")
        cubin = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program)))
        _ok(nvrtc.nvrtcGetCUBIN(program, cubin))
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(bytes(cubin))
        scratch.replace(path)  # atomic: another process may compile the same file
    return path.read_bytes()


@functools.cache
def _load(headdim, device):
    """The three kernels on a device whose context is current."""
    major, minor = torch.cuda.get_device_capability(device)
    module = _ok(driver.cuModuleLoadData(compile_cubin(headdim, f"sm_{major}{minor}")))
    kernels = [_ok(driver.cuModuleGetFunction(module, name)) for name in KERNELS]
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    for kernel in kernels[1:]:
        _ok(driver.cuFuncSetAttribute(kernel, attribute, smem_bytes(headdim)))
    return kernels


def _launch(kernel, grid, smem, *args):
    """Enqueue on torch's current stream; tensors go as pointers, int and float as 32 bits."""
    values, types = [], []
    for arg in args:
        is_tensor = isinstance(arg, torch.Tensor)
        values.append(arg.data_ptr() if is_tensor else arg)
        kinds = {int: ctypes.c_int, float: ctypes.c_float}
        types.append(ctypes.c_void_p if is_tensor else kinds[type(arg)])
    stream = torch.cuda.current_stream().cuda_stream
    packed = (tuple(values), tuple(types))
    _ok(driver.cuLaunchKernel(kernel, *grid, 1, THREADS, 1, 1, smem, stream, packed, 0))


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    """(dq, dk, dv); tensors (batch, nheads, seqlen, headdim) fp16, lse fp32 without headdim.

    Raises:
        NotImplementedError: q is not on a GPU, not fp16, or of another headdim.
    """
    batch, nheads, seqlen, headdim = q.shape
    if not q.is_cuda or q.dtype != torch.float16 or headdim not in HEADDIMS:
        raise NotImplementedError(
            f"cuda_wmma_lab_backward takes fp16 on a GPU, headdim {HEADDIMS}; "
            f"q is {tuple(q.shape)} {q.dtype} on {q.device}"
        )
    q, k, v, o, lse, do = (tensor.contiguous() for tensor in (q, k, v, o, lse, do))
    statistics, keys, queries = _load(headdim, q.device.index)
    heads, tiles = batch * nheads, -(-seqlen // ROWS)
    scale = 1.0 / math.sqrt(headdim) if sm_scale is None else float(sm_scale)
    lse_log2, delta = torch.empty(2, heads, tiles * ROWS, device=q.device, dtype=torch.float32)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    numbers = (seqlen, scale, scale * LOG2_E, int(causal))
    smem = smem_bytes(headdim)
    _launch(
        statistics, (tiles * ROWS // WARPS, heads), 0, o, do, lse, lse_log2, delta, seqlen,
        tiles * ROWS,
    )  # fmt: skip
    _launch(keys, (tiles * heads, 1), smem, q, k, v, do, lse_log2, delta, dk, dv, *numbers)
    _launch(queries, (tiles * heads, 1), smem, q, k, v, do, lse_log2, delta, dq, *numbers)
    return dq, dk, dv
