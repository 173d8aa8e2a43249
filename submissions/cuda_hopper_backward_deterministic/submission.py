"""Attention backward on Hopper (sm_90a) whose gradients have the same bits in every call; headdim 64, 128 and 256.

fp16 and bf16, causal or full, heads of k and v as many as of q and as long. The kernels are those of
`cuda_hopper_backward` but for the sums of dq, which kv blocks add to in an order of their own choice there and in a
fixed one here (`kernels/order.cuh`). This file compiles them once (NVRTC, cached on disk), encodes the tensor maps
that TMA needs, and keeps what a call repeats per set of pointers.
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
NAME = "cuda_hopper_backward_deterministic"
HEADERS = ("sm90.cuh", "rows.cuh", "order.cuh", "passes.cuh")
PASSES = "kernels/passes.cu"
FILES = {64: "kernels/three.cu", 128: "kernels/backward.cu", 256: "kernels/wide.cu"}
KV_ROWS = {64: 192, 128: 128, 256: 64}  # of a block
MAX_PLANS = 1024
MAP_TYPES = {
    torch.float16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    torch.bfloat16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}


class Walk(NamedTuple):
    """How the blocks of a grid are walked: the order of the sums, so part of what makes the bits."""

    section_bytes: int  # q, do and dq sums of heads walked together; headdim 256: their dS
    falling: int  # how many sections at the end are walked from the longest block to the shortest


def walk_for(headdim: int, causal: bool) -> Walk:
    """The fastest walk of a class of shapes on one H200: NOTES.md."""
    return Walk({64: 16, 128: 32, 256: 520}[headdim] << 20, 1 if causal else 0)


class Part(ctypes.Structure):
    """`struct Part` of wide.cu, field by field."""

    _fields_ = [(name, ctypes.c_int) for name in ("head", "kv_tile", "kv_tiles")]


class Order(ctypes.Structure):
    """`struct Order` of order.cuh, field by field."""

    _fields_ = [
        ("turns", ctypes.c_void_p),
        *((n, ctypes.c_int) for n in ("heads", "section", "falling_from")),
    ]


class Params(ctypes.Structure):
    """`struct Params` of backward.cu, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("stats", "dq_sum", "dk", "dv")),
        ("order", Order),
        *((n, ctypes.c_int) for n in ("seqlen", "causal")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class Passes(ctypes.Structure):
    """`struct Passes` of passes.cuh, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("o", "d_o", "lse", "stats", "dq_sum", "dq", "done")),
        ("order", Order),
        ("seqlen", ctypes.c_int),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class ThreeParams(ctypes.Structure):
    """`struct Params` of three.cu, field by field."""

    _fields_ = [
        ("passes", Passes),
        *((n, ctypes.c_void_p) for n in ("dk", "dv")),
        ("causal", ctypes.c_int),
    ]


THREE_THREADS, THREE_WARPS = 512, 16


def three_smem_bytes() -> int:
    """k, v; four slots of q and do; dS three times; 8 KB for the pass's warp; lse and delta; halves; records; barriers."""
    tiles = 5 * KV_ROWS[64] * 128 + 2 * 4 * 64 * 128
    barriers = 2 * 4 + 2 + 3 + 6 + 17 + THREE_WARPS
    return tiles + 8192 + 2 * 4 * 64 * 16 + 128 + 8 * 16 + 8 * barriers


def three_blocks(heads: int, seqlen: int, section: int, at_once: int = 1 << 30) -> tuple[int, int]:
    """Blocks of a grid whose spare warps do the passes (passes.cuh), and its sections of heads.

    `at_once`: how many main blocks there are at most; they stay and take kv blocks until none is left.
    """
    widths = [min(section, heads - first) for first in range(0, heads, section)]
    before = widths[:2]  # preprocessed by blocks of their own
    passes = sum(-(-2 * width * -(-seqlen // 64) // THREE_WARPS) for width in before)
    return passes + min(heads * -(-seqlen // KV_ROWS[64]), at_once), len(widths)


def fused_smem_bytes() -> int:
    """`backward`: k, v; three slots of q and do; dS twice; dq of a tile; lse and delta of every slot; barriers."""
    tiles = 2 * 128 * 256 + 2 * 3 * 64 * 256 + 2 * 128 * 64 * 2
    return tiles + 64 * 128 * 4 + 2 * 3 * 64 * 4 + 8 * (2 * 3 + 2 + 2 + 3)


def not_0(scale: float) -> float:
    """The scale itself, or what no sum tells from 0: `three` divides lse by it."""
    return scale if abs(scale) > 1e-30 else 1e-30


class Shape(NamedTuple):
    """A block of one of `wide`'s two kernels: rows of its own, threads, shared memory."""

    rows: int
    threads: int
    smem_bytes: int


def wide_shapes(headdim: int) -> tuple[Shape, Shape]:
    """The kernel for dk, dv and dS: tiles, P twice in fp32, lse and delta, barriers. The one for dq: four times k and two of dS."""
    tile, ds_tile = 64 * headdim * 2, 64 * 64 * 2
    dq = Shape(128, 384, 4 * (tile + 2 * ds_tile) + 64)
    return Shape(64, 384, 6 * tile + 2 * 16384 + 1024 + 96), dq


class DsPart(NamedTuple):
    """Whose dS is in memory at once: of some heads these tiles of 64 kv rows; it takes `ds_tiles` of 64 x 64."""

    head: int
    heads: int
    kv_tile: int
    kv_tiles: int
    ds_tiles: int


def ds_parts(heads: int, tiles: int, kv_tiles: int, packed: bool, most_bytes: int) -> list[DsPart]:
    """All heads in as few parts as hold `most_bytes` at most each; a kv tile of a head at least. `packed`: only what is seen if causal."""
    most = max(1, most_bytes // 8192)
    rows = [tiles - j if packed else tiles for j in range(kv_tiles)]  # dS of a kv tile
    of_head = sum(rows)
    if of_head <= most:
        sections = -(-heads // (most // of_head))
        wide = -(-heads // sections)
        firsts = range(0, heads, wide)
        widths = [min(wide, heads - first) for first in firsts]
        return [DsPart(*x, 0, kv_tiles, x[1] * of_head) for x in zip(firsts, widths, strict=True)]
    parts, first = [], 0
    while first < kv_tiles:
        last, ds_tiles = first + 1, rows[first]
        while last < kv_tiles and ds_tiles + rows[last] <= most:
            last, ds_tiles = last + 1, ds_tiles + rows[last]
        parts.append((first, last - first, ds_tiles))
        first = last
    return [DsPart(head, 1, *part) for head in range(heads) for part in parts]


# ---------------------------------------------------------------------------------------- compile
def _ok(result: tuple) -> object:
    """Unwraps a (status, value...) tuple of cuda.bindings; raises RuntimeError on any failure."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"submissions/{NAME}: CUDA call failed with {status!r}")
    return values[0] if len(values) == 1 else values


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
    root = os.environ.get("ATTNBOARD_CACHE") or os.path.join(tempfile.gettempdir(), "attnboard")
    home = Path(root) / NAME
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{Path(file).stem}_d{headdim}_{digest.hexdigest()[:24]}.cubin"
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
def _bind_context(device: int) -> None:
    """Make the GPU's context this thread's. One of autograd's has none until something allocates."""
    if int(_ok(driver.cuCtxGetCurrent())) == 0:
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))


def _tensor_map(t: torch.Tensor, rows: int) -> object:
    """[batch, heads, seqlen, headdim], contiguous, in boxes of rows x 64; rows past the end read as 0."""
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    batch, heads, seqlen, headdim = t.shape
    return _ok(
        driver.cuTensorMapEncodeTiled(
            MAP_TYPES[t.dtype],
            3,
            t.data_ptr(),
            [u64(headdim), u64(seqlen), u64(heads * batch)],
            [u64(headdim * 2), u64(seqlen * headdim * 2)],
            [u32(64), u32(rows), u32(1)],
            [u32(1)] * 3,
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
            raise RuntimeError(f"submissions/{NAME}: cuLaunchKernel failed with {status!r}")


class _Clear:
    """Zeros in words of the work space."""

    def __init__(self, pointer: ctypes.c_void_p, words: int) -> None:
        self.pointer, self.words = pointer, words

    def __call__(self, stream: int) -> None:
        _ok(driver.cuMemsetD32Async(self.pointer.value, 0, self.words, stream))


@functools.lru_cache(maxsize=None)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


class Plan:
    """The launches of one call, ready to go except for what is allocated per call, and the stream."""

    def __init__(self, q, k, v, o, d_o, causal: bool, scale: float, walk: Walk) -> None:
        batch, nheads, self.seqlen, headdim = q.shape
        self.heads, self.tiles = batch * nheads, -(-q.shape[2] // 64)
        self.scale, self.causal = scale, causal
        section = walk.section_bytes // (8 * self.seqlen * headdim)
        self.section = max(1, min(self.heads, section))  # heads
        self.sections = -(-self.heads // self.section)
        self.falling_from = max(0, self.sections - walk.falling)
        self.d_o = ctypes.c_void_p(d_o.data_ptr())
        self.o, self.lse, self.stats, self.dq_sum, self.dq, self.dk, self.dv, self.turns = (
            ctypes.c_void_p() for _ in range(8)
        )
        fused = headdim < 256  # dq of a tile is the sum of many blocks' parts
        # work space, in words: stats, dq_sum (headdim 256: dS), turns, and by which blocks of `three` wait for each other
        self.words = [
            self.heads * self.tiles * (512 if headdim == 64 else 128),
            self.heads * self.tiles * 64 * headdim if fused else 0,
            self.heads * self.tiles if fused else 0,
            self.sections + 1 if headdim == 64 else 0,
        ]
        flags = ("-DBF16=1",) if q.dtype == torch.bfloat16 else ()
        self.device = q.device
        function = functools.partial(_function, headdim=headdim, flags=flags, device=q.device.index)
        self.passes = functools.partial(function, file=PASSES)
        self.main = functools.partial(function, file=FILES[headdim])
        rows = KV_ROWS[headdim]
        maps = [_tensor_map(t, n) for t, n in ((q, 64), (k, rows), (v, rows), (d_o, 64))]
        self.params = None
        self.section_bytes, self.ds_floats, self.ds_sums = walk.section_bytes, 0, ctypes.c_void_p()
        kinds = {64: self._three, 128: self._fused, 256: self._wide}
        self.launches = kinds[headdim](maps, headdim)

    def _preprocess(self) -> _Launch:
        kernel = self.passes("preprocess", smem_bytes=0)
        pointers = self.o, self.d_o, self.lse, self.stats, self.turns
        return _Launch(
            kernel, self.heads * self.tiles, 256, 0, *pointers, ctypes.c_int(self.seqlen)
        )

    def _order(self) -> Order:
        return Order(None, self.heads, self.section, self.falling_from)

    def _fused(self, maps: list, headdim: int) -> list[_Launch]:
        """Row sums, one kernel of five products, dq out of its sums."""
        log2 = self.scale * math.log2(math.e)
        self.params = Params(
            *(None,) * 4, self._order(), self.seqlen, int(self.causal), self.scale, log2
        )
        smem, grid = fused_smem_bytes(), self.heads * -(-self.seqlen // KV_ROWS[128])
        kernel = self.main("backward", smem_bytes=smem)
        launches = [self._preprocess(), _Launch(kernel, grid, 384, smem, *maps, self.params)]
        smem = 64 * (headdim + 8) * 2
        after = self.passes("postprocess", smem_bytes=smem)
        numbers = ctypes.c_float(self.scale), ctypes.c_int(self.seqlen)
        sizes = self.heads * self.tiles, 256, smem
        launches.append(_Launch(after, *sizes, self.dq_sum, self.dq, *numbers))
        return launches

    def _three(self, maps: list, _headdim: int) -> list[_Launch]:
        """One kernel, whose spare warps do the passes."""
        log2 = not_0(self.scale * math.log2(math.e))
        passes = Passes(*(None,) * 7, self._order(), self.seqlen, self.scale, log2)
        self.params = ThreeParams(passes, None, None, int(self.causal))
        at_once = _multiprocessors(self.device)
        grid, _ = three_blocks(self.heads, self.seqlen, self.section, at_once)
        smem = three_smem_bytes()
        kernel = self.main("backward", smem_bytes=smem)
        return [
            _Clear(self.turns, self.words[2] + self.words[3]),
            _Launch(kernel, grid, THREE_THREADS, smem, *maps, self.params),
        ]

    def _wide(self, maps: list, headdim: int) -> list[_Launch]:
        """Row sums; for each part of dS a kernel for it, dk and dv, and one for dq."""
        parts = ds_parts(self.heads, self.tiles, self.tiles, self.causal, self.section_bytes)
        self.ds_floats = 2048 * max(part.ds_tiles for part in parts)
        cut = any(part.kv_tile for part in parts)
        self.words[1] = self.ds_floats + (64 * self.tiles * headdim if cut else 0)
        scale = ctypes.c_float(self.scale)
        sizes = ctypes.c_int(self.seqlen), ctypes.c_int(self.causal), scale
        log2_scale = ctypes.c_float(self.scale * math.log2(math.e))
        launches, (dkdv, dq) = [self._preprocess()], wide_shapes(headdim)
        kernels = [self.main(n, smem_bytes=x.smem_bytes) for n, x in (("dkdv", dkdv), ("dq", dq))]
        for one in parts:
            part = Part(one.head, one.kv_tile, one.kv_tiles)
            at = one.heads * one.kv_tiles, dkdv.threads, dkdv.smem_bytes
            results = self.stats, self.dk, self.dv
            launches.append(
                _Launch(kernels[0], *at, *maps, *results, *sizes, log2_scale, self.dq_sum, part)
            )
            at = one.heads * -(-self.seqlen // dq.rows), dq.threads, dq.smem_bytes
            sums = self.dq_sum, self.ds_sums, self.dq
            launches.append(_Launch(kernels[1], *at, maps[1], *sums, *sizes, part))
        return launches

    def point_at(self, o, lse, dq, dk, dv) -> torch.Tensor:
        """Puts a call's tensors into the arguments; returns the work space, to hold while it is queued."""
        space = torch.empty(sum(self.words), dtype=torch.float32, device=o.device)
        stats, dq_sum, turns, done = (space.data_ptr() + 4 * sum(self.words[:i]) for i in range(4))
        self.stats.value, self.dq_sum.value = stats, dq_sum
        self.ds_sums.value = dq_sum + 4 * self.ds_floats
        self.turns.value = turns if self.words[2] else None
        self.o.value, self.lse.value = o.data_ptr(), lse.data_ptr()
        self.dq.value, self.dk.value, self.dv.value = (x.data_ptr() for x in (dq, dk, dv))
        params = self.params
        if params is not None:
            params.dk, params.dv = self.dk.value, self.dv.value
            pointers = params.passes if isinstance(params, ThreeParams) else params
            pointers.stats, pointers.dq_sum, pointers.order.turns = stats, dq_sum, turns
        if isinstance(params, ThreeParams):
            params.passes.o, params.passes.d_o = self.o.value, self.d_o.value
            params.passes.dq, params.passes.lse = self.dq.value, self.lse.value
            params.passes.done = done
        return space

    def __call__(self, o, lse, dq, dk, dv, stream: int) -> None:
        """Queues the launches; the work space is given back in stream order."""
        space = self.point_at(o, lse, dq, dk, dv)
        for launch in self.launches:
            launch(stream)
        del space


_plans: dict[tuple, Plan] = {}


def _check(q, k, v, o, lse, do) -> None:
    """Raises NotImplementedError away from a GPU, ValueError for tensors that do not fit together."""
    if not q.is_cuda:
        raise NotImplementedError(f"{NAME} runs on a Hopper GPU, not on a CPU")
    if q.dim() != 4 or q.dtype not in MAP_TYPES or q.shape[3] not in FILES:
        raise ValueError(
            f"{NAME}: q is {tuple(q.shape)} {q.dtype}; wanted fp16 or bf16 "
            f"(batch, heads, seqlen, headdim), headdim one of {sorted(FILES)}"
        )
    for name, t in (("k", k), ("v", v), ("o", o), ("do", do)):
        if t.dtype != q.dtype or t.device != q.device or t.shape != q.shape:
            raise ValueError(
                f"{NAME}: {name} is {tuple(t.shape)} {t.dtype} on {t.device} beside q "
                f"{tuple(q.shape)} {q.dtype} on {q.device}; wanted k, v, o and do like q"
            )
    if lse.dtype != torch.float32 or lse.shape != q.shape[:3]:
        raise ValueError(
            f"{NAME}: lse is {tuple(lse.shape)} {lse.dtype}; "
            "wanted float32 (batch, heads, seqlen), natural logarithm"
        )


def _ready(t: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy: contiguous, at an address that 16 divides."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, walk=None):
    """Gradients of softmax(q kᵀ · sm_scale) v, the same bits in every call.

    q, k, v, o, do (batch, heads, seqlen, headdim) fp16 or bf16, lse (batch, heads, seqlen) float32,
    natural logarithm -> dq, dk, dv like q. `walk` picks another than `walk_for` does. At headdim 256 dS is kept in
    memory, 0.55 GB at a time at most, whatever the length; `Walk(n, 0)` takes n bytes.
    """
    device = q.device.index
    if device is not None and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return custom_attention_backward(q, k, v, o, lse, do, causal, sm_scale, walk)
    q, k, v, o, do = (_ready(t) for t in (q, k, v, o, do))
    lse = lse.contiguous()
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    key = (
        q.data_ptr(), k.data_ptr(), v.data_ptr(), do.data_ptr(), *((t.shape, t.dtype) for t in (q, k, v, o, do, lse)),
        device, causal, sm_scale, walk, threading.get_ident(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        _check(q, k, v, o, lse, do)
        if q.numel() == 0:
            return dq, dk, dv
        scale = q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _bind_context(device)
        walk = walk or walk_for(q.shape[3], bool(causal))
        plan = _plans[key] = Plan(q, k, v, o, do, bool(causal), scale, walk)
    plan(o, lse, dq, dk, dv, torch._C._cuda_getCurrentRawStream(device))
    return dq, dk, dv
