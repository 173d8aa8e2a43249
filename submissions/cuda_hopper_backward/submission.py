"""Causal and full attention backward on Hopper (sm_90a), fp16, headdim 64, 128 and 256.

Three launches on torch's current stream: `kernels/passes.cu` (row sums, zeroed dq sums), the main
kernel, and, where dq was summed in fp32, its conversion. This file compiles them once (NVRTC, cached
on disk), encodes the tensor maps that TMA needs, and keeps what a call repeats per set of pointers.
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

FOLDER = Path(__file__).resolve().parent
HEADERS = ("sm90.cuh", "rows.cuh")
PASSES = "kernels/passes.cu"
FILES = {  # rung -> its source
    "two_kernels": "kernels/two_kernels.cu",
    "wide": "kernels/wide.cu",
    "fused": "steps/02_fused.cu",
    "ahead": "kernels/backward.cu",
    "three": "kernels/three.cu",
    "pair": "kernels/pair.cu",
}
TWO_KERNELS, WIDE, THREE, PAIR = "two_kernels", "wide", "three", "pair"
KV_ROWS = {
    "two_kernels": 64,
    "wide": 64,
    "fused": 128,
    "ahead": 128,
    "three": 192,
    "pair": 256,
}  # a block
THREADS = {"three": 384}  # of a block of a fused kernel, where it is not 256
PASS_FLAGS = {"three": ("-DSTATS_BY_LANE=1",)}  # of preprocess
MAX_PLANS = 1024


class Build(NamedTuple):
    """One way to compute the gradients of one headdim."""

    rung: str
    flags: tuple[str, ...] = ()
    section_bytes: int = 32 << 20  # q, do and dq sums of the heads that are walked together


BUILDS = {  # the fastest of each official shape on one H200: NOTES.md
    64: Build("ahead", ("-DA_IN_REGS=1", "-DDQ_LATE=1", "-DDQ_RED=1")),
    128: Build("ahead", ("-DA_IN_REGS=0", "-DDQ_LATE=2", "-DDV_LATE=0")),
    256: Build(WIDE),  # dk and dv of 128 kv rows do not fit the registers
}
SHORT_CAUSAL_64 = Build(THREE)  # headdim 64, causal, up to SHORT_CAUSAL_64_ROWS rows
FULL_64 = Build(PAIR, section_bytes=16 << 20)  # headdim 64, not causal
SHORT_CAUSAL_64_ROWS = 2048
SHORT_128 = Build("ahead", ("-DA_IN_REGS=0",))  # up to SHORT_128_ROWS: dQ in its own trip, dV late
SHORT_128_ROWS = 512


def build_for(headdim: int, seqlen: int, causal: bool) -> Build:
    """The fastest build of a class of shapes on one H200: NOTES.md."""
    if headdim == 64 and not causal:
        return FULL_64
    if headdim == 64 and seqlen <= SHORT_CAUSAL_64_ROWS:
        return SHORT_CAUSAL_64
    if headdim == 128 and seqlen <= SHORT_128_ROWS:
        return SHORT_128
    return BUILDS[headdim]


class Params(ctypes.Structure):
    """`struct Params` of the fused kernels, field by field."""

    _fields_ = [
        ("stats", ctypes.c_void_p),
        ("dq_sum", ctypes.c_void_p),
        ("dk", ctypes.c_void_p),
        ("dv", ctypes.c_void_p),
        ("seqlen", ctypes.c_int),
        ("heads", ctypes.c_int),
        ("section", ctypes.c_int),
        ("causal", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("scale_log2", ctypes.c_float),
    ]


def turns_smem_bytes(kv_rows: int) -> int:
    """`three` and `pair`: k, v; four slots of q and do; dS three times; lse and delta; barriers."""
    return 5 * kv_rows * 128 + 2 * 4 * 64 * 128 + 2 * 4 * 64 * 4 + 8 * (2 * 4 + 2 + 3)


def fused_smem_bytes(headdim: int, flags: tuple[str, ...] = ()) -> int:
    """k, v; slots of q and do; dS; dq of a tile; lse and delta of every slot; barriers."""
    slots, ds_buffers = (4, 3) if "-DDQ_LATE=1" in flags else (3, 2)
    tiles = 2 * 128 * headdim * 2 + 2 * slots * 64 * headdim * 2 + ds_buffers * 128 * 64 * 2
    return tiles + 64 * headdim * 4 + 2 * slots * 64 * 4 + 8 * (2 * slots + 2 + ds_buffers)


class Shape(NamedTuple):
    """A block of one of the two kernels: rows of its own, threads, shared memory."""

    rows: int
    threads: int
    smem_bytes: int


def two_shapes(rung: str, headdim: int) -> tuple[Shape, Shape]:
    """The kernel for dk and dv and the one for dq of `two_kernels` or `wide`."""
    tile = 64 * headdim * 2
    if rung == WIDE:  # six tiles, two of P, lse and delta, barriers; seven tiles, barriers
        return Shape(64, 384, 6 * tile + 2 * 8192 + 1024 + 96), Shape(128, 384, 7 * tile + 80)
    smem = 6 * tile + 24
    return Shape(64, 256 if headdim == 256 else 128, smem), Shape(64, 128, smem)


# ---------------------------------------------------------------------------------------- compile
def _ok(result: tuple) -> object:
    """Unwraps a (status, value...) tuple of cuda.bindings; raises RuntimeError on any failure."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"submissions/cuda_hopper_backward: CUDA call failed with {status!r}")
    return values[0] if len(values) == 1 else values


def _cache_dir() -> Path:
    root = os.environ.get("ATTNBOARD_CACHE") or os.path.join(tempfile.gettempdir(), "attnboard")
    path = Path(root) / "cuda_hopper_backward"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _nvrtc_compile(file: str, flags: list[str]) -> bytes:
    headers = [(FOLDER / "kernels" / name).read_bytes() for name in HEADERS]
    names = [name.encode() for name in HEADERS]
    source = (FOLDER / file).read_bytes()
    program = _ok(nvrtc.nvrtcCreateProgram(source, file.encode(), len(names), headers, names))
    options = [flag.encode() for flag in flags]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{FOLDER / file}: NVRTC failed\n{bytes(log).decode()}")
    cubin = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program)))
    _ok(nvrtc.nvrtcGetCUBIN(program, cubin))
    return bytes(cubin)


def compile_cubin(file: str, headdim: int, flags: tuple[str, ...] = ()) -> bytes:
    """A file's machine code for one headdim, from the cache folder or freshly compiled."""
    options = ["--gpu-architecture=sm_90a", "-std=c++17", f"-DHEADDIM={headdim}", *flags]
    digest = hashlib.sha256(repr((options, _ok(nvrtc.nvrtcVersion()))).encode())
    for path in (FOLDER / file, *(FOLDER / "kernels" / name for name in HEADERS)):
        digest.update(path.read_bytes())
    path = _cache_dir() / f"{Path(file).stem}_d{headdim}_{digest.hexdigest()[:24]}.cubin"
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_bytes(_nvrtc_compile(file, options))
        scratch.replace(path)  # atomic: another process may compile the same file
    return path.read_bytes()


@functools.lru_cache(maxsize=None)
def _function(
    name: str, file: str, headdim: int, flags: tuple[str, ...], smem_bytes: int, device: int
) -> object:
    """A kernel's handle, with its shared memory allowed, on a device whose context is current."""
    module = _ok(driver.cuModuleLoadData(compile_cubin(file, headdim, flags)))
    function = _ok(driver.cuModuleGetFunction(module, name.encode()))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _ok(driver.cuFuncSetAttribute(function, attribute, smem_bytes))
    return function


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


class _Launch:
    """One kernel with its arguments: tensor maps, a structure, or ctypes numbers that may be changed."""

    def __init__(self, function: object, grid: int, threads: int, smem: int, *args: object) -> None:
        self.function, self.grid, self.threads, self.smem, self.args = (
            function, grid, threads, smem, args,
        )  # fmt: skip
        addresses = [
            ctypes.addressof(a)
            if isinstance(a, (ctypes._SimpleCData, ctypes.Structure))
            else int(a.getPtr())
            for a in args
        ]
        self.addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self.at = ctypes.addressof(self.addresses)

    def __call__(self, stream: int) -> None:
        (status,) = driver.cuLaunchKernel(
            self.function, self.grid, 1, 1, self.threads, 1, 1, self.smem, stream, self.at, 0
        )
        if status != 0:
            raise RuntimeError(
                f"submissions/cuda_hopper_backward: cuLaunchKernel failed with {status!r}"
            )


class Plan:
    """The launches of one call, ready to go except for what is allocated per call, and the stream."""

    def __init__(self, q, k, v, d_o, causal: bool, scale: float, build: Build) -> None:
        batch, nheads, seqlen, headdim = q.shape
        heads, tiles = batch * nheads, -(-seqlen // 64)
        device, file = q.device.index, FILES[build.rung]
        self.fused = build.rung not in (TWO_KERNELS, WIDE)
        self.stats_floats, self.sum_floats = heads * tiles * 128, heads * tiles * 64 * headdim
        kv_rows = KV_ROWS[build.rung]
        maps = [
            _tensor_map(t.data_ptr(), heads, seqlen, headdim, rows)
            for t, rows in ((q, 64), (k, kv_rows), (v, kv_rows), (d_o, 64))
        ]
        pointer, integer, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
        self.o, self.lse, self.stats, self.dq_sum, self.dq, self.dk, self.dv = (
            pointer() for _ in range(7)
        )
        scales = number(scale), number(scale * math.log2(math.e))
        function = functools.partial(_function, headdim=headdim, device=device)
        flags = PASS_FLAGS.get(build.rung, ())
        before = function("preprocess", PASSES, flags=flags, smem_bytes=0)
        self.launches = [
            _Launch(before, heads * tiles, 256, 0, self.o, pointer(d_o.data_ptr()), self.lse, self.stats,
                    self.dq_sum, integer(seqlen))
        ]  # fmt: skip
        self.params = None
        if self.fused:
            smem, after_smem = fused_smem_bytes(headdim, build.flags), 64 * (headdim + 8) * 2
            if build.rung in (THREE, PAIR):
                smem = turns_smem_bytes(kv_rows)
            section = max(1, min(heads, build.section_bytes // (8 * seqlen * headdim)))
            self.params = Params(
                None, None, None, None, seqlen, heads, section, int(causal), scale, scales[1].value
            )
            grid = heads * -(-seqlen // kv_rows)
            main = function("backward", file, flags=build.flags, smem_bytes=smem)
            after = function("postprocess", PASSES, flags=(), smem_bytes=after_smem)
            self.launches += [
                _Launch(main, grid, THREADS.get(build.rung, 256), smem, *maps, self.params),
                _Launch(after, heads * tiles, 256, after_smem, self.dq_sum, self.dq, scales[0], integer(seqlen)),
            ]  # fmt: skip
            return
        dkdv, dq = two_shapes(build.rung, headdim)
        tail = (integer(seqlen), integer(int(causal)), *scales)
        for name, shape, results in (("dkdv", dkdv, (self.dk, self.dv)), ("dq", dq, (self.dq,))):
            kernel = function(name, file, flags=build.flags, smem_bytes=shape.smem_bytes)
            grid = heads * -(-seqlen // shape.rows)
            sizes = (grid, shape.threads, shape.smem_bytes)
            self.launches.append(_Launch(kernel, *sizes, *maps, self.stats, *results, *tail))

    def __call__(self, o, lse, dq, dk, dv, stream: int) -> None:
        """Queues the launches; stats and dq sums are torch's memory, given back in stream order."""
        stats = torch.empty(self.stats_floats, dtype=torch.float32, device=o.device)
        self.o.value, self.lse.value, self.stats.value = (
            o.data_ptr(),
            lse.data_ptr(),
            stats.data_ptr(),
        )
        self.dq.value, self.dk.value, self.dv.value = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
        if self.fused:
            dq_sum = torch.empty(self.sum_floats, dtype=torch.float32, device=o.device)
            self.dq_sum.value = dq_sum.data_ptr()
            self.params.stats, self.params.dq_sum = stats.data_ptr(), dq_sum.data_ptr()
            self.params.dk, self.params.dv = dk.data_ptr(), dv.data_ptr()
        for launch in self.launches:
            launch(stream)


_plans: dict[tuple, Plan] = {}


def _check(q, k, v, o, lse, do) -> None:
    if not q.is_cuda:
        raise NotImplementedError("cuda_hopper_backward runs on a Hopper GPU, not on a CPU")
    for name, t in (("q", q), ("k", k), ("v", v), ("o", o), ("do", do)):
        if t.dtype != torch.float16 or t.dim() != 4 or not t.is_cuda or t.shape != q.shape:
            raise ValueError(
                f"cuda_hopper_backward: {name} is {tuple(t.shape)} {t.dtype} on {t.device}; "
                "wanted five fp16 CUDA tensors (batch, nheads, seqlen, headdim)"
            )
    if lse.dtype != torch.float32 or lse.shape != q.shape[:3]:
        raise ValueError(
            f"cuda_hopper_backward: lse is {tuple(lse.shape)} {lse.dtype}; "
            "wanted float32 (batch, nheads, seqlen), natural logarithm"
        )
    if q.shape[3] not in BUILDS:
        raise ValueError(
            f"cuda_hopper_backward: headdim {q.shape[3]}; it is built for {sorted(BUILDS)}"
        )


def _dense(t: torch.Tensor) -> torch.Tensor:
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()  # TMA wants 16-byte aligned tensors


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, build=None):
    """Gradients of softmax(q kᵀ · sm_scale) v.

    q, k, v, o, do (batch, nheads, seqlen, headdim) fp16, lse (batch, nheads, seqlen) float32, natural
    logarithm -> dq, dk, dv like q. `build` picks another than `build_for` does.
    """
    device = q.device.index
    if device is not None and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return custom_attention_backward(q, k, v, o, lse, do, causal, sm_scale, build)
    q, k, v, o, do, lse = (_dense(t) for t in (q, k, v, o, do, lse))
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    if q.numel() == 0:
        return dq, dk, dv
    tensors = q, k, v, o, do, lse
    key = (
        q.data_ptr(), k.data_ptr(), v.data_ptr(), do.data_ptr(), *((t.shape, t.dtype) for t in tensors),
        device, causal, sm_scale, build, threading.get_ident(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        _check(q, k, v, o, lse, do)
        scale = q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        chosen = build or build_for(q.shape[3], q.shape[2], bool(causal))
        plan = _plans[key] = Plan(q, k, v, do, bool(causal), scale, chosen)
    plan(o, lse, dq, dk, dv, torch._C._cuda_getCurrentRawStream(device))
    return dq, dk, dv
