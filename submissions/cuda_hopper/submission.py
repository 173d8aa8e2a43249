"""Causal and full attention forward on Hopper (sm_90a), fp16 and bf16, headdim 64, 128 and 256.

q (batch, heads, seqlen_q, headdim); k, v (batch, kv_heads, seqlen_k, headdim), query head h reads kv
head h // (heads // kv_heads); causal: query i sees the keys up to i + seqlen_k - seqlen_q. One row of
tokens may hold many sequences (cu_seqlens). Strides are taken as they are where TMA can (headdim
contiguous, the others positive multiples of 16 bytes).

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from cuda.bindings import driver, nvrtc

try:  # torch's own compiled check of a tensor, which graphs of torch.compile begin with
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # a torch without it: calls cost the host a microsecond more
    TensorGuards = None

KERNEL_DIR = Path(__file__).resolve().parent / "kernels"
SOURCES = ("attention.cu", "sm90.cuh")
CAPABILITY = (9, 0)  # what sm_90a machine code runs on, and nothing else
# K and V of the heads that are walked together stay in L2 (NOTES.md): 32 of an H200's 60 MiB, and half
# of that where the problem is short and Q and O are as large as they
SECTION_SHARE_OF_L2 = 0.54
SHORT_SEQLEN = 2048
MAX_SEQLEN = (
    1 << 30
) - 1024  # bit 30 of an item's row word is a flag, the sum of two lengths an int
MAX_ITEMS = (1 << 31) - 1
MAX_BATCH, MAX_HEADS = (1 << 15) - 1, 1 << 16  # they share a word of 31 bits
MAX_STRIDE_BYTES = 1 << 40  # of a tensor map
DTYPES = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}  # as tensor maps call them
MAX_PLANS = 1024
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")  # keywords


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

    def smem_bytes(self, headdim: int, packed: bool = False) -> int:
        q_slots = self.warpgroups * self.q_stages
        tiles = (self.k_stages + self.v_stages) * self.block_n * headdim * 2
        barriers = 16 * (self.k_stages + self.v_stages + q_slots)
        return (
            q_slots * 64 * headdim * 2 + tiles + barriers + 16 + 16 + 8 + 32 * packed
        )  # done, items, redo


SHAPES = {  # (headdim, for items of about equal length): tile, warpgroups, K, V and Q stages
    (64, False): Shape(64, 4, 3, 3, 2),
    (128, False): Shape(64, 3, 4, 4, 2),
    (128, True): Shape(128, 2, 2, 2, 2),
    (256, False): Shape(80, 2, 2, 2, 1),
}
HEADDIMS = sorted({headdim for headdim, _ in SHAPES})


def _build(headdim: int, causal: bool, seqlen_q: int, seqlen_k: int) -> tuple[int, bool]:
    """Which build serves a problem: a key of SHAPES.

    A chunk of queries over a cache at least as long sees nearly all keys in each row: its items are
    about equal, as those of full attention are, and fill the last wave better where they are smaller.
    """
    full = not causal or seqlen_k >= 2 * seqlen_q
    return (headdim, full) if (headdim, full) in SHAPES else (headdim, False)


class Divisor(ctypes.Structure):
    """n / d as n * times >> shift, exact for 0 <= n < 2^31."""

    _fields_ = [("times", ctypes.c_uint32), ("shift", ctypes.c_uint32)]

    @classmethod
    def of(cls, d: int) -> Divisor:
        shift = 31 + (d - 1).bit_length()
        return cls(-(-(1 << shift) // d), shift)


class Problem(ctypes.Structure):
    """`struct Problem` of the kernel, field by field: what a launch is given beside its tensor maps."""

    _fields_ = [
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("o_batch", ctypes.c_uint64),  # strides of o in elements
        ("o_head", ctypes.c_uint64),
        ("o_row", ctypes.c_uint64),
        ("by_heads", Divisor),
        ("by_group", Divisor),
        ("batch", ctypes.c_int),
        ("heads", ctypes.c_int),
        ("group", ctypes.c_int),  # query heads of one kv head
        ("seqlen_q", ctypes.c_int),
        ("seqlen_k", ctypes.c_int),
        ("causal", ctypes.c_int),
        ("reach", ctypes.c_int),  # query i sees the keys before 1 + i + reach
        ("section", ctypes.c_int),  # heads per section; the kernel takes the power of two below
        ("scale_log2", ctypes.c_float),
        ("list", ctypes.c_void_p),  # of the query blocks of packed sequences
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


def compile_cubin(headdim: int, full_only: bool, bf16: bool, packed: bool) -> bytes:
    """The kernel's machine code of one build, from the cache folder or freshly compiled."""
    flags = ["--gpu-architecture=sm_90a", "-std=c++17"]
    flags += [f"-DHEADDIM={headdim}", f"-DFULL_ONLY={int(full_only)}", f"-DBF16={int(bf16)}"]
    flags += [f"-DPACKED={int(packed)}"]
    digest = hashlib.sha256(repr((flags, _ok(nvrtc.nvrtcVersion()))).encode())
    for name in SOURCES:
        digest.update((KERNEL_DIR / name).read_bytes())
    path = _cache_dir() / f"attention_d{headdim}_{digest.hexdigest()[:24]}.cubin"
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_bytes(_nvrtc_compile(flags))
        scratch.replace(path)  # atomic: another process may compile the same file
    return path.read_bytes()


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = [
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.lru_cache(maxsize=None)
def _launcher() -> Callable[..., int]:
    """cuLaunchKernelEx(config, function, arguments, extra), whose arguments a plan keeps as they are."""
    return ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx


class Counters:
    """Gives each launch a pair of work counters that no other launch in flight uses.

    All are zero at first, and the last CTA of a launch sets its pair back to zero. A launch that is
    captured into a CUDA graph keeps its pair for good: the graph may be replayed on any stream, beside
    anything. All others take turns; a pair comes again after RING launches, and a GPU keeps far fewer
    waiting.
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
    list_blocks: object | None  # of packed sequences, launched before it
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
def _load(headdim: int, full_only: bool, bf16: bool, packed: bool, device: int) -> Kernel:
    """A build on a device whose context is current.

    Raises:
        NotImplementedError: the device is not of compute capability 9.0.
    """
    _refuse_other_chips(device)
    cubin = compile_cubin(headdim, full_only, bf16, packed)
    with _allowed_while_capturing():
        module = _ok(driver.cuModuleLoadData(cubin))
        counters = Counters(_zeros(Counters.BYTES))
    function = _ok(driver.cuModuleGetFunction(module, b"attention_forward"))
    lists = _ok(driver.cuModuleGetFunction(module, b"list_blocks")) if packed else None
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _ok(
        driver.cuFuncSetAttribute(
            function, attribute, SHAPES[headdim, full_only].smem_bytes(headdim, packed)
        )
    )
    chip = torch.cuda.get_device_properties(device)
    section_bytes = int(SECTION_SHARE_OF_L2 * chip.L2_cache_size)
    return Kernel(function, lists, chip.multi_processor_count, section_bytes, counters)


# ------------------------------------------------------------------------------------------- plan
def _tensor_map(t: torch.Tensor, rows: int) -> object:
    """t (batch, heads, seqlen, headdim) in boxes of 1 x 1 x rows x 64; rows past the end read as 0."""
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    batch, heads, seqlen, headdim = t.shape
    dense = (heads * seqlen * headdim, seqlen * headdim, headdim)  # of one row, no stride is used
    strides = [u64(2 * (t.stride(i) if t.shape[i] > 1 else dense[i])) for i in (2, 1, 0)]
    kinds = driver.CUtensorMapDataType
    return _ok(
        driver.cuTensorMapEncodeTiled(
            getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{DTYPES[t.dtype]}"),
            4,
            t.data_ptr(),
            [u64(headdim), u64(seqlen), u64(heads), u64(batch)],
            strides,
            [u32(64), u32(rows), u32(1), u32(1)],
            [u32(1)] * 4,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


def _is_mappable(t: torch.Tensor) -> bool:
    """Whether a tensor map can describe t (batch, heads, seqlen, headdim) as it lies."""
    used = [
        2 * stride for size, stride in zip(t.shape[:3], t.stride()[:3], strict=True) if size > 1
    ]
    fits = all(0 < stride < MAX_STRIDE_BYTES and stride % 16 == 0 for stride in used)
    return fits and t.stride(3) == 1 and t.data_ptr() % 16 == 0


def _dense(t: torch.Tensor) -> torch.Tensor:
    """A contiguous copy."""
    return t.clone(memory_format=torch.contiguous_format)


def _section(kernel: Kernel, q: torch.Tensor, k: torch.Tensor, causal: bool) -> int:
    """Query heads that are walked together."""
    if not causal:  # one after the other: those of a group, which share K and V, follow each other
        return 1
    heads, kv_heads, seqlen_k, headdim = q.shape[1], *k.shape[1:]
    section_bytes = kernel.section_bytes // (2 if seqlen_k <= SHORT_SEQLEN else 1)
    sharing = max(1, section_bytes // (4 * seqlen_k * headdim))  # kv heads
    return min(q.shape[0] * heads, sharing * (heads // kv_heads))


class Sequences(NamedTuple):
    """Sequences that are packed into one row of tokens; on the device, nobody here knows their lengths."""

    q_begin: int  # addresses of int32 [count + 1]
    k_begin: int
    count: int
    longest: int  # of q, in tokens

    def most_blocks(self, seqlen_q: int, block_m: int) -> int:
        """Each sequence ends in one block that is not full."""
        return seqlen_q // block_m + self.count


class Plan:
    """One launch, ready to go except for the output pointer and the stream."""

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float,
        sequences: Sequences | None = None,
    ) -> None:  # fmt: skip
        batch, heads, seqlen_q, headdim = q.shape
        kv_heads, seqlen_k = k.shape[1:3]
        build = _build(headdim, causal, seqlen_q, seqlen_k)
        shape = SHAPES[build]
        blocks = -(-seqlen_q // shape.block_m)
        self.lists = None
        if sequences:
            blocks = sequences.most_blocks(seqlen_q, shape.block_m)
            self.lists = ListOfBlocks(sequences, blocks, shape.block_m, q.device)
        items = batch * heads * blocks
        self.kernel = _load(*build, q.dtype == torch.bfloat16, bool(sequences), q.device.index)
        tiles = (q, 64), (k, shape.block_n), (v, shape.block_n)
        self.maps = [_tensor_map(t, rows) for t, rows in tiles]
        o_stride = torch.empty_like(q, device="meta").stride()
        self.o_like = q.shape, o_stride, q.dtype, q.get_device()
        self.problem = Problem(
            *(None, None, None),  # o, lse and counter come with the launch
            *o_stride[:3],
            *(Divisor.of(heads), Divisor.of(heads // kv_heads), batch, heads, heads // kv_heads),
            *(seqlen_q, seqlen_k, int(causal), seqlen_k - seqlen_q if causal else seqlen_k),
            _section(self.kernel, q, k, causal),
            sm_scale * math.log2(math.e),
        )
        self.addresses = (ctypes.c_void_p * 4)(
            *(int(m.getPtr()) for m in self.maps), ctypes.addressof(self.problem)
        )
        grid, threads = min(items, self.kernel.sm_count), 128 * (shape.warpgroups + 1)
        self.config = LaunchConfig(
            grid, 1, 1, threads, 1, 1, shape.smem_bytes(headdim, bool(sequences))
        )
        handles = ctypes.addressof(self.config), int(self.kernel.function)
        pointers = *handles, ctypes.addressof(self.addresses), None
        self.arguments = tuple(map(ctypes.c_void_p, pointers))
        self.start = _launcher()

    def launch(self, o_pointer: int, lse_pointer: int | None, stream: int) -> None:
        if self.lists:
            blocks = self.lists.launch(self.kernel.list_blocks, stream)
            self.problem.list = blocks.data_ptr()
        self.problem.o = o_pointer
        self.problem.lse = lse_pointer
        self.problem.counter = self.kernel.counters.take(torch.cuda.is_current_stream_capturing())
        self.config.stream = stream
        status = self.start(*self.arguments)
        if status:
            name = driver.CUresult(status).name
            raise RuntimeError(f"submissions/cuda_hopper: cuLaunchKernelEx failed with {name}")

    def fits(self, out: torch.Tensor) -> bool:
        """Whether the kernel can write its output into `out`."""
        like = self.o_like
        same = out.shape == like[0] and out.stride() == like[1] and out.dtype is like[2]
        return same and out.get_device() == like[3] and out.data_ptr() % 16 == 0


class ListOfBlocks:
    """The launch that lists the query blocks of packed sequences."""

    THREADS = 128

    def __init__(
        self, sequences: Sequences, most_blocks: int, block_m: int, device: torch.device
    ) -> None:
        self._like = torch.empty((1 + most_blocks, 4), dtype=torch.int32, device="meta")
        self._device = device
        self._values = (
            *(ctypes.c_void_p(sequences.q_begin), ctypes.c_void_p(sequences.k_begin)),
            *(ctypes.c_int(sequences.count), ctypes.c_int(-(-sequences.longest // block_m))),
            ctypes.c_void_p(),
        )
        self._addresses = (ctypes.c_void_p * 5)(*(ctypes.addressof(x) for x in self._values))

    def launch(self, function: object, stream: int) -> torch.Tensor:
        """The list; whoever reads it must do so on this stream, torch's current one."""
        blocks = torch.empty_like(self._like, device=self._device)
        self._values[-1].value = blocks.data_ptr()
        arguments = ctypes.addressof(self._addresses)
        threads = (self.THREADS, 1, 1)
        _ok(driver.cuLaunchKernel(function, 1, 1, 1, *threads, 0, stream, arguments, 0))
        return blocks


_plans: dict[tuple, Plan] = {}
_into: dict[tuple, tuple[Plan, Callable[..., bool]]] = {}  # by pointers; `_same` of q, k, v and out


def _check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sequences: Sequences | None
) -> None:
    """Raises ValueError for tensors that it does not take; the message names the first."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dtype not in DTYPES or t.dim() != 4 or not t.is_cuda:
            raise ValueError(
                f"cuda_hopper: {name} is {tuple(t.shape)} {t.dtype} on {t.device}; wanted three fp16 or "
                "bf16 CUDA tensors (batch, heads, seqlen, headdim)"
            )
        wanted = k.shape if name == "v" else (q.shape[0], t.shape[1], t.shape[2], q.shape[3])
        if (t.dtype, t.device) != (q.dtype, q.device) or t.shape != wanted:
            raise ValueError(
                f"cuda_hopper: {name} is {tuple(t.shape)} {t.dtype} on {t.device} beside q "
                f"{tuple(q.shape)} {q.dtype} on {q.device}; k and v have one shape, and batch, headdim, "
                "dtype and device of q"
            )
    _check_heads(q.shape, k.shape, causal and not sequences)
    _check_size(q.shape, k.shape[2], causal, sequences)


def _check_heads(q_shape: tuple[int, ...], k_shape: tuple[int, ...], causal: bool) -> None:
    """Raises ValueError where a query has no kv head, or a row no key."""
    (_, heads, seqlen_q, _), (_, kv_heads, seqlen_k, _) = q_shape, k_shape
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"cuda_hopper: {heads} query heads over {kv_heads} kv heads; wanted a multiple"
        )
    if seqlen_k < 1 or (causal and seqlen_q > seqlen_k):
        raise ValueError(
            f"cuda_hopper: {seqlen_q} queries over {seqlen_k} keys{', causal' * causal}: "
            "some query would see no key"
        )


def _sequences(q: torch.Tensor, packed: dict) -> Sequences:
    """What the four keywords of packed sequences say; raises ValueError where one is missing or wrong."""
    if sorted(packed) != sorted(PACKED):
        raise ValueError(f"cuda_hopper: keywords {sorted(packed)}; packed sequences need {PACKED}")
    begins = [packed["cu_seqlens_q"], packed["cu_seqlens_k"]]
    for name, begin in zip(PACKED, begins, strict=False):
        wanted = (torch.int32, q.device, begins[0].shape, 1)
        if (begin.dtype, begin.device, begin.shape, begin.dim()) != wanted or len(begin) < 2:
            raise ValueError(
                f"cuda_hopper: {name} is {tuple(begin.shape)} {begin.dtype} on {begin.device}; wanted "
                f"(sequences + 1) int32 on {q.device}, two of one length"
            )
    if q.shape[0] != 1 or not all(begin.is_contiguous() for begin in begins):
        raise ValueError(
            f"cuda_hopper: batch {q.shape[0]}; packed sequences are one row of tokens, batch 1, and "
            "cu_seqlens contiguous"
        )
    longest = min(int(packed["max_seqlen_q"]), q.shape[2])
    return Sequences(*(begin.data_ptr() for begin in begins), len(begins[0]) - 1, longest)


def _check_size(
    shape: tuple[int, ...], seqlen_k: int, causal: bool, sequences: Sequences | None = None
) -> None:
    """Raises ValueError for a q (batch, heads, seqlen, headdim) that the kernel cannot count."""
    batch, heads, seqlen_q, headdim = shape
    if headdim not in HEADDIMS:
        raise ValueError(f"cuda_hopper: headdim {headdim}; it is built for {HEADDIMS}")
    if max(seqlen_q, seqlen_k) > MAX_SEQLEN:
        raise ValueError(
            f"cuda_hopper: seqlen {max(seqlen_q, seqlen_k)}; it takes at most {MAX_SEQLEN}"
        )
    if heads > MAX_HEADS:
        raise ValueError(f"cuda_hopper: {heads} heads; it takes at most {MAX_HEADS}")
    # the last section of heads is filled up, to twice the heads at most
    block_m = SHAPES[_build(headdim, causal, seqlen_q, seqlen_k)].block_m
    blocks = sequences.most_blocks(seqlen_q, block_m) if sequences else -(-seqlen_q // block_m)
    items = 2 * batch * heads * blocks
    parts = max(-(-items // MAX_ITEMS), -(-batch // MAX_BATCH))
    if parts > 1:
        raise ValueError(
            f"cuda_hopper: {batch} x {heads} heads of {seqlen_q} rows are too many for one launch; "
            f"split the batch in {parts}"
        )


def _key(q, k, v, causal, sm_scale, sequences) -> tuple:
    """All that a plan depends on, and the thread, because a plan's problem is written at each launch."""
    return (
        *(q.data_ptr(), q.shape, q.stride(), q.dtype),
        *(k.data_ptr(), k.shape, k.stride(), k.dtype),
        *(v.data_ptr(), v.shape, v.stride(), v.dtype),
        *(q.get_device(), causal, sm_scale, sequences, threading.get_ident()),
    )


def _same(*tensors: torch.Tensor) -> Callable[..., bool]:
    """Whether tensors given later have dtypes, devices, shapes and strides of these; asked in C++."""
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    return guards.check


def _launched_into(out, q, k, v, causal, sm_scale, device: int) -> bool:
    """The short way of a call on pointers that were seen before, whose output `out` is to be."""
    key = q.data_ptr(), k.data_ptr(), v.data_ptr(), causal, sm_scale, threading.get_ident()
    plan, same = _into.get(key) or (None, None)
    if plan is None or not same(q, k, v, out):
        plan = _plans.get(_key(q, k, v, causal, sm_scale, None))
        if plan is None or TensorGuards is None or not plan.fits(out):
            return False
        if len(_into) >= MAX_PLANS:
            _into.clear()
        _into[key] = plan, _same(q, k, v, out)
    pointer = out.data_ptr()
    if pointer % 16:
        return False
    plan.launch(pointer, None, torch._C._cuda_getCurrentRawStream(device))
    return True


def _bind_context(device: int) -> None:
    """Make the GPU's context this thread's. One of autograd's has none until something allocates."""
    if int(_ok(driver.cuCtxGetCurrent())) == 0:
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))


def _make_plan(q, k, v, causal, sm_scale, sequences) -> Plan:
    """For tensors that a tensor map can describe, on the current GPU."""
    scale = q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
    if len(_plans) >= MAX_PLANS:
        _plans.clear()
    _bind_context(q.device.index)
    key = _key(q, k, v, causal, sm_scale, sequences)
    plan = _plans[key] = Plan(q, k, v, causal, scale, sequences)
    return plan


def custom_attention_forward(
    q, k, v, causal=True, sm_scale=None, return_lse=False, out=None, **packed
):
    """softmax(q kᵀ · sm_scale) v. q (batch, heads, seqlen_q, headdim), k, v (batch, kv_heads, seqlen_k,
    headdim), fp16 or bf16 -> o of q's shape and order in memory, in `out` if it is given.

    With `return_lse` also the natural logarithm of each row's sum of exp(q kᵀ · sm_scale), float32
    (batch, heads, seqlen_q), which a backward takes. A tensor whose strides no tensor map can have
    (see `_is_mappable`) is copied first, an `out` that is not as `torch.empty_like(q)` is copied to.

    packed: cu_seqlens_q and cu_seqlens_k, int32 (sequences + 1) on the device, max_seqlen_q and
    max_seqlen_k. Each sequence attends to itself alone; it has a key, and where causal no fewer keys
    than queries. The device reads the lengths, the host never waits for them.

    Raises:
        ValueError: a tensor that it does not take; the message names it.
        NotImplementedError: the GPU is not of compute capability 9.0.
    """
    device = q.get_device()
    if device >= 0 and device != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return custom_attention_forward(q, k, v, causal, sm_scale, return_lse, out, **packed)
    short = out is not None and not return_lse and not packed
    if short and _launched_into(out, q, k, v, causal, sm_scale, device):
        return out
    sequences = _sequences(q, packed) if packed else None
    plan = _plans.get(_key(q, k, v, causal, sm_scale, sequences))
    if plan is None:
        _check(q, k, v, causal, sequences)
        q, k, v = (t if _is_mappable(t) else _dense(t) for t in (q, k, v))
        plan = _make_plan(q, k, v, causal, sm_scale, sequences) if q.numel() else None
    o = out if out is not None and plan and plan.fits(out) else torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    if plan:
        lse_pointer = lse.data_ptr() if return_lse else None
        plan.launch(o.data_ptr(), lse_pointer, torch._C._cuda_getCurrentRawStream(device))
    if out is not None and o is not out:
        o = _copied(o, out)
    return (o, lse) if return_lse else o


def _copied(o: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`out`, with the values of o; raises ValueError where it has another shape."""
    if out.shape != o.shape:
        raise ValueError(f"cuda_hopper: out is {tuple(out.shape)}; q is {tuple(o.shape)}")
    return out.copy_(o)
