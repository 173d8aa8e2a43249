"""Causal and full attention forward on Hopper (sm_90a), fp16, headdim 64, 128 and 256.

The kernel is `kernels/attention.cu`; this file compiles it once (NVRTC, cached on disk), encodes the
tensor maps that its TMA loads need, and launches it on torch's current stream. What a call repeats
(tensor maps, argument block) is kept per set of pointers, so that a call costs the host microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import math
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from cuda.bindings import driver, nvrtc

KERNEL_DIR = Path(__file__).resolve().parent / "kernels"
SOURCES = ("attention.cu", "sm90.cuh")
CAPABILITY = (9, 0)  # what sm_90a machine code runs on, and nothing else
# K and V of the heads that are walked together stay in L2 (NOTES.md): 32 of an H200's 60 MiB, and half
# of that where the problem is short and Q and O are as large as they
SECTION_SHARE_OF_L2 = 0.54
SHORT_SEQLEN = 2048
MAX_SEQLEN = (1 << 30) - 1  # bit 30 of an item's row word is a flag
MAX_ITEMS = (1 << 31) - 1
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


SHAPES = {  # (headdim, for full attention alone): tile, warpgroups, K, V and Q stages
    (64, False): Shape(64, 4, 3, 3, 2),
    (128, False): Shape(64, 3, 4, 4, 2),
    (128, True): Shape(128, 2, 2, 2, 2),
    (256, False): Shape(80, 2, 2, 2, 1),
}
HEADDIMS = sorted({headdim for headdim, _ in SHAPES})


def _build(headdim: int, causal: bool) -> tuple[int, bool]:
    """Which build serves a problem: a key of SHAPES."""
    return (headdim, not causal) if (headdim, not causal) in SHAPES else (headdim, False)


class Params(ctypes.Structure):
    """The kernel's parameters after its three tensor maps, in its order."""

    _fields_ = [
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
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


def compile_cubin(headdim: int, full_only: bool) -> bytes:
    """The kernel's machine code of one build, from the cache folder or freshly compiled."""
    flags = ["--gpu-architecture=sm_90a", "-std=c++17"]
    flags += [f"-DHEADDIM={headdim}", f"-DFULL_ONLY={int(full_only)}"]
    digest = hashlib.sha256(repr((flags, _ok(nvrtc.nvrtcVersion()))).encode())
    for name in SOURCES:
        digest.update((KERNEL_DIR / name).read_bytes())
    path = _cache_dir() / f"attention_d{headdim}_{digest.hexdigest()[:24]}.cubin"
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_bytes(_nvrtc_compile(flags))
        scratch.replace(path)  # atomic: another process may compile the same file
    return path.read_bytes()


class Counters:
    """Gives each launch a pair of work counters that no other launch in flight uses.

    All are zero at first, and the last CTA of a launch sets its pair back to zero. A launch that is captured into a CUDA graph keeps its pair for good: the graph may be
    replayed on any stream, beside anything. All others take turns; a pair comes again after RING launches,
    and a GPU keeps far fewer waiting.
    """

    RING = 1 << 15
    BYTES = 2 * RING * 8

    def __init__(self, address: int) -> None:
        self._address = address
        self._eager = itertools.count()  # next() on it is one step for all threads
        self._captured = itertools.count()

    def take(self, capturing: bool) -> int:
        """Address of the pair for a launch that is made, or captured, now."""
        if not capturing:
            return self._address + 8 * (next(self._eager) % self.RING)
        used = next(self._captured)
        if used >= self.RING:
            raise RuntimeError(
                f"cuda_hopper: {self.RING} launches were captured into CUDA graphs, and each keeps its "
                "work counters; capture again in a new process"
            )
        return self._address + 8 * (self.RING + used)


class Kernel(NamedTuple):
    """One build on one device."""

    function: object
    sm_count: int
    section_bytes: int  # of K and V
    counters: Counters


def _refuse_other_chips(device: int) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability != CAPABILITY:
        raise NotImplementedError(
            "cuda_hopper is sm_90a machine code, for compute capability 9.0 alone (H100, H200, GH200); "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `triton_champion` there."
        )


@contextlib.contextmanager
def _allowed_while_capturing() -> Iterator[None]:
    """Lets this thread load and allocate even if its first call comes while a stream captures a graph."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = _ok(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        _ok(driver.cuThreadExchangeStreamCaptureMode(before))


def _zeros(size_bytes: int) -> int:
    """Address of device memory, zero on return, that lives as long as the process."""
    address = _ok(driver.cuMemAlloc(size_bytes))
    stream = _ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    _ok(driver.cuMemsetD8Async(address, 0, size_bytes, stream))
    _ok(driver.cuStreamSynchronize(stream))
    _ok(driver.cuStreamDestroy(stream))
    return int(address)


@functools.lru_cache(maxsize=None)
def _load(headdim: int, full_only: bool, device: int) -> Kernel:
    """A build on a device whose context is current.

    Raises:
        NotImplementedError: the device is not of compute capability 9.0.
    """
    _refuse_other_chips(device)
    cubin = compile_cubin(headdim, full_only)
    with _allowed_while_capturing():
        module = _ok(driver.cuModuleLoadData(cubin))
        counters = Counters(_zeros(Counters.BYTES))
    function = _ok(driver.cuModuleGetFunction(module, b"attention_forward"))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _ok(
        driver.cuFuncSetAttribute(
            function, attribute, SHAPES[headdim, full_only].smem_bytes(headdim)
        )
    )
    chip = torch.cuda.get_device_properties(device)
    section_bytes = int(SECTION_SHARE_OF_L2 * chip.L2_cache_size)
    return Kernel(function, chip.multi_processor_count, section_bytes, counters)


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
        build = _build(headdim, causal)
        shape = SHAPES[build]
        heads = batch * nheads
        items = heads * -(-seqlen // shape.block_m)
        self.kernel = _load(*build, q.device.index)
        section = 1  # full attention: one head after the other
        if causal:
            section_bytes = self.kernel.section_bytes // (2 if seqlen <= SHORT_SEQLEN else 1)
            section = max(1, min(heads, section_bytes // (4 * seqlen * headdim)))
        self.maps = [
            _tensor_map(t.data_ptr(), heads, seqlen, headdim, rows)
            for t, rows in ((q, 64), (k, shape.block_n), (v, shape.block_n))
        ]
        scale_log2 = sm_scale * math.log2(math.e)
        self.params = Params(None, None, seqlen, scale_log2, int(causal), heads, section, None)
        at = ctypes.addressof(self.params)
        offsets = [getattr(Params, name).offset for name, _ in Params._fields_]
        self.addresses = (ctypes.c_void_p * 11)(
            *(int(m.getPtr()) for m in self.maps), *(at + offset for offset in offsets)
        )
        self.arguments = ctypes.addressof(self.addresses)
        self.grid = min(items, self.kernel.sm_count)
        self.threads = 128 * (shape.warpgroups + 1)
        self.smem = shape.smem_bytes(headdim)

    def launch(self, o_pointer: int, lse_pointer: int | None, stream: int) -> None:
        self.params.o = o_pointer
        self.params.lse = lse_pointer
        self.params.counter = self.kernel.counters.take(torch.cuda.is_current_stream_capturing())
        (status,) = driver.cuLaunchKernel(
            self.kernel.function,
            *(self.grid, 1, 1),
            *(self.threads, 1, 1),
            self.smem,
            stream,
            self.arguments,
            0,
        )
        if status != 0:
            raise RuntimeError(f"submissions/cuda_hopper: cuLaunchKernel failed with {status!r}")


_plans: dict[tuple, Plan] = {}


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype != torch.float16 or t.dim() != 4 or not t.is_cuda or t.shape != q.shape:
            raise ValueError(
                f"cuda_hopper: {name} is {tuple(t.shape)} {t.dtype} on {t.device}; "
                "wanted three fp16 CUDA tensors (batch, nheads, seqlen, headdim)"
            )
    _check_size(q.shape, causal)


def _check_size(shape: tuple[int, ...], causal: bool) -> None:
    """Raises ValueError for a (batch, nheads, seqlen, headdim) that the kernel cannot count."""
    batch, nheads, seqlen, headdim = shape
    if headdim not in HEADDIMS:
        raise ValueError(f"cuda_hopper: headdim {headdim}; it is built for {HEADDIMS}")
    if seqlen > MAX_SEQLEN:
        raise ValueError(f"cuda_hopper: seqlen {seqlen}; it takes at most {MAX_SEQLEN}")
    # the last section of heads is filled up, to twice the heads at most
    items = 2 * batch * nheads * -(-seqlen // SHAPES[_build(headdim, causal)].block_m)
    if items > MAX_ITEMS:
        raise ValueError(
            f"cuda_hopper: {batch} x {nheads} heads of {seqlen} rows are too many for one launch; "
            f"split the batch in {-(-items // MAX_ITEMS)}"
        )


def _dense(t: torch.Tensor) -> torch.Tensor:
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()  # TMA wants 16-byte aligned tensors


def _key(q, k, v, causal, sm_scale) -> tuple:
    """All that a plan depends on, and the thread, because a plan's argument block is written at each launch."""
    return (
        *(q.data_ptr(), q.shape, q.dtype),
        *(k.data_ptr(), k.shape, k.dtype),
        *(v.data_ptr(), v.shape, v.dtype),
        *(q.device.index, causal, sm_scale, threading.get_ident()),
    )


def _make_plan(key: tuple, q, k, v, causal, sm_scale) -> Plan:
    _check(q, k, v, causal)
    scale = q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
    if len(_plans) >= MAX_PLANS:
        _plans.clear()
    plan = _plans[key] = Plan(q, k, v, causal, scale)
    return plan


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, return_lse=False):
    """softmax(q kᵀ · sm_scale) v. q, k, v (batch, nheads, seqlen, headdim) fp16 -> the same shape.

    With `return_lse` also the natural logarithm of each row's sum of exp(q kᵀ · sm_scale), float32
    (batch, nheads, seqlen), which a backward takes.

    Raises:
        ValueError: a tensor that it does not take; the message names it.
        NotImplementedError: the GPU is not of compute capability 9.0.
    """
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()) or (
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15
    ):
        q, k, v = _dense(q), _dense(k), _dense(v)
    if not q.is_cuda:
        _check(q, k, v, causal)
    o = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    if q.numel() == 0:
        return (o, lse) if return_lse else o
    device = q.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return custom_attention_forward(q, k, v, causal, sm_scale, return_lse)
    key = _key(q, k, v, causal, sm_scale)
    plan = _plans.get(key) or _make_plan(key, q, k, v, causal, sm_scale)
    lse_pointer = lse.data_ptr() if return_lse else None
    plan.launch(o.data_ptr(), lse_pointer, torch._C._cuda_getCurrentRawStream(device))
    return (o, lse) if return_lse else o
