"""Causal and full attention forward on Hopper (sm_90a), fp16, headdim 64, 128 and 256.

The kernel is `kernels/attention.cu`; this file compiles it once (NVRTC, cached on disk), encodes the
tensor maps that its TMA loads need, and launches it on torch's current stream. What a call repeats
(tensor maps, argument block) is kept per set of pointers, so that a call costs the host microseconds.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import torch
from cuda.bindings import driver, nvrtc

KERNEL_DIR = Path(__file__).resolve().parent / "kernels"
SOURCES = ("attention.cu", "sm90.cuh")
# K and V of the heads that are walked together: they stay in L2 (NOTES.md)
SECTION_BYTES = 32 << 20
MAX_PLANS = 1024


class Shape(NamedTuple):
    """What the host must know of `struct Shape` in the kernel."""

    block_n: int  # kv rows per tile
    warpgroups: int  # consumer warpgroups of 64 query rows
    k_stages: int
    v_stages: int
    q_stages: int

    @property
    def block_m(self) -> int:
        return 64 * self.warpgroups

    def smem_bytes(self, headdim: int) -> int:
        q_slots = self.warpgroups * self.q_stages
        tiles = (self.k_stages + self.v_stages) * self.block_n * headdim * 2
        barriers = 16 * (self.k_stages + self.v_stages + q_slots)
        return q_slots * 64 * headdim * 2 + tiles + barriers + 16 + 16 + 8  # done, items, redo


SHAPES = {  # tile, warpgroups, K, V and Q stages
    64: Shape(64, 4, 3, 3, 2),
    128: Shape(64, 3, 4, 4, 2),
    256: Shape(80, 2, 2, 2, 1),
}


class Params(ctypes.Structure):
    """The kernel's parameters after its three tensor maps, in its order."""

    _fields_ = [
        ("o", ctypes.c_void_p),
        ("seqlen", ctypes.c_int),
        ("scale_log2", ctypes.c_float),
        ("causal", ctypes.c_int),
        ("heads", ctypes.c_int),
        ("section", ctypes.c_int),  # heads per section; the kernel takes the power of two below
        ("counter", ctypes.c_void_p),
    ]


# ---------------------------------------------------------------------------------------- compile
def _ok(result: tuple) -> object:
    """Unwraps a (status, value...) tuple of cuda.bindings; raises RuntimeError on any failure."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"submissions/cuda_hopper: CUDA call failed with {status!r}")
    return values[0] if len(values) == 1 else values


def _cache_dir() -> Path:
    root = os.environ.get("ATTNBOARD_CACHE") or os.path.join(tempfile.gettempdir(), "attnboard")
    path = Path(root) / "cuda_hopper"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _nvrtc_compile(flags: list[str]) -> bytes:
    source = (KERNEL_DIR / SOURCES[0]).read_bytes()
    headers = [(KERNEL_DIR / name).read_bytes() for name in SOURCES[1:]]
    names = [name.encode() for name in SOURCES[1:]]
    program = _ok(nvrtc.nvrtcCreateProgram(source, b"attention.cu", len(names), headers, names))
    options = [flag.encode() for flag in flags]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{KERNEL_DIR / SOURCES[0]}: NVRTC failed\n{bytes(log).decode()}")
    cubin = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program)))
    _ok(nvrtc.nvrtcGetCUBIN(program, cubin))
    return bytes(cubin)


def compile_cubin(headdim: int) -> bytes:
    """The kernel's machine code for one headdim, from the cache folder or freshly compiled."""
    flags = ["--gpu-architecture=sm_90a", "-std=c++17", f"-DHEADDIM={headdim}"]
    digest = hashlib.sha256(repr((flags, _ok(nvrtc.nvrtcVersion()))).encode())
    for name in SOURCES:
        digest.update((KERNEL_DIR / name).read_bytes())
    path = _cache_dir() / f"attention_d{headdim}_{digest.hexdigest()[:24]}.cubin"
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_bytes(_nvrtc_compile(flags))
        scratch.replace(path)  # atomic: another process may compile the same file
    return path.read_bytes()


@functools.lru_cache(maxsize=None)
def _load(headdim: int, device: int) -> tuple[object, int]:
    """(kernel handle, multiprocessor count) on a device whose context is current."""
    module = _ok(driver.cuModuleLoadData(compile_cubin(headdim)))
    function = _ok(driver.cuModuleGetFunction(module, b"attention_forward"))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _ok(driver.cuFuncSetAttribute(function, attribute, SHAPES[headdim].smem_bytes(headdim)))
    return function, torch.cuda.get_device_properties(device).multi_processor_count


# ------------------------------------------------------------------------------------------- plan
def _tensor_map(pointer: int, heads: int, seqlen: int, headdim: int, rows: int) -> object:
    """A [heads, seqlen, headdim] fp16 tensor in boxes of 1 x rows x 64; rows past the end read as 0."""
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    return _ok(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            3,
            pointer,
            [u64(headdim), u64(seqlen), u64(heads)],
            [u64(headdim * 2), u64(seqlen * headdim * 2)],
            [u32(64), u32(rows), u32(1)],
            [u32(1), u32(1), u32(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


class Plan:
    """One launch, ready to go except for the output pointer and the stream."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
    ) -> None:
        batch, nheads, seqlen, headdim = q.shape
        shape = SHAPES[headdim]
        heads = batch * nheads
        items = heads * -(-seqlen // shape.block_m)
        section = max(1, min(heads, SECTION_BYTES // (4 * seqlen * headdim)))
        self.function, sm_count = _load(headdim, q.device.index)
        self.maps = [
            _tensor_map(t.data_ptr(), heads, seqlen, headdim, rows)
            for t, rows in ((q, 64), (k, shape.block_n), (v, shape.block_n))
        ]
        scale_log2 = sm_scale * math.log2(math.e)
        self.params = Params(None, seqlen, scale_log2, int(causal), heads, section, None)
        at = ctypes.addressof(self.params)
        offsets = [getattr(Params, name).offset for name, _ in Params._fields_]
        self.addresses = (ctypes.c_void_p * 10)(
            *(int(m.getPtr()) for m in self.maps), *(at + offset for offset in offsets)
        )
        self.arguments = ctypes.addressof(self.addresses)
        self.grid = min(items, sm_count)
        self.threads = 128 * (shape.warpgroups + 1)
        self.smem = shape.smem_bytes(headdim)

    def launch(self, o_pointer: int, counter: int, stream: int) -> None:
        self.params.o = o_pointer
        self.params.counter = counter
        (status,) = driver.cuLaunchKernel(
            self.function, self.grid, 1, 1, self.threads, 1, 1, self.smem, stream, self.arguments, 0
        )
        if status != 0:
            raise RuntimeError(f"submissions/cuda_hopper: cuLaunchKernel failed with {status!r}")


_plans: dict[tuple, Plan] = {}
_counters: dict[tuple[int, int], torch.Tensor] = {}


def _counter(device: int, stream: int) -> int:
    """Address of the work counters of a stream; launches on one stream follow one another."""
    found = _counters.get((device, stream))
    if found is None:
        found = _counters[device, stream] = torch.zeros(
            2, dtype=torch.int32, device=f"cuda:{device}"
        )
    return found.data_ptr()


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype != torch.float16 or t.dim() != 4 or not t.is_cuda or t.shape != q.shape:
            raise ValueError(
                f"cuda_hopper: {name} is {tuple(t.shape)} {t.dtype} on {t.device}; "
                "wanted three fp16 CUDA tensors (batch, nheads, seqlen, headdim)"
            )
    if q.shape[3] not in SHAPES:
        raise ValueError(f"cuda_hopper: headdim {q.shape[3]}; it is built for {sorted(SHAPES)}")


def _dense(t: torch.Tensor) -> torch.Tensor:
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()  # TMA wants 16-byte aligned tensors


def _make_plan(key: tuple, q, k, v, causal, sm_scale) -> Plan:
    _check(q, k, v)
    scale = q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
    if len(_plans) >= MAX_PLANS:
        _plans.clear()
    plan = _plans[key] = Plan(q, k, v, causal, scale)
    return plan


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """softmax(q kᵀ · sm_scale) v. q, k, v (batch, nheads, seqlen, headdim) fp16 -> the same shape."""
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()) or (
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15
    ):
        q, k, v = _dense(q), _dense(k), _dense(v)
    o = torch.empty_like(q)
    if q.numel() == 0:
        return o
    device = q.device.index
    key = (
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        q.shape,
        q.dtype,
        k.dtype,
        v.dtype,
        device,
        causal,
        sm_scale,
        threading.get_ident(),
    )
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return custom_attention_forward(q, k, v, causal, sm_scale)
    plan = _plans.get(key) or _make_plan(key, q, k, v, causal, sm_scale)
    stream = torch._C._cuda_getCurrentRawStream(device)
    plan.launch(o.data_ptr(), _counter(device, stream), stream)
    return o
