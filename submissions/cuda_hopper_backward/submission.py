"""Causal and full attention backward on Hopper (sm_90a), fp16 and bf16, headdim 64, 128 and 256.

k and v may have fewer heads than q, and more or fewer rows; all inputs may be views whose last dimension
is contiguous. Launches on torch's current stream: headdim 64 clears a few words and has one kernel, which does
its short passes itself; headdim 128 preprocesses (row sums, zeroed dq sums where they must be: `kernels/passes.cu`),
runs the main kernel and converts dq's fp32 sums, of all heads or of those that the main kernel leaves; headdim 256
preprocesses and has a kernel for dk, dv and dS and one for dq of that dS, for as many heads at a time as have dS in
0.55 GB, or for some kv rows of one head. Where heads share k and v, one more sums their dk and
dv. Packed sequences at headdim 128: `kernels/packed.cu`, to which the device tells where they begin. This file compiles them once (NVRTC, cached on disk), encodes the tensor maps that TMA needs, and keeps what
a call repeats per set of pointers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
import os
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import torch
from cuda.bindings import driver, nvrtc

FOLDER = Path(__file__).resolve().parent
HEADERS = ("sm90.cuh", "rows.cuh", "passes.cuh", "spare.cuh")
PASSES = "kernels/passes.cu"
WIDE, THREE, AHEAD, PACKED = "wide", "three", "ahead", "packed"
FILES = {AHEAD: "kernels/backward.cu", THREE: "kernels/three.cu", WIDE: "kernels/wide.cu", PACKED: "kernels/packed.cu"}  # fmt: skip
KV_ROWS = {AHEAD: 128, THREE: 192, WIDE: 64, PACKED: 128}  # of a block
MAX_PLANS = 1024
MB, NEVER = 1 << 20, 1 << 30
GENERAL, BF16, ONCE, STORED = "-DGENERAL=1", "-DBF16=1", "-DONCE=1", "-DSTORED=1"
MAP_TYPES = {
    torch.float16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    torch.bfloat16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}


class Build(NamedTuple):
    """One way to compute the gradients of one headdim."""

    rung: str
    flags: tuple[str, ...] = ()
    # q, do and dq sums of the heads that are walked together; headdim 256: their dS
    section_bytes: int = 32 << 20
    cuts: bool = False  # headdim 128: kv blocks of the last, partly filled wave are in pieces
    lead: int = 0  # headdim 128: by how many sections spare warps preprocess ahead; 0: not at all
    once: bool = False  # headdim 64: a block takes one kv block, not one after the other
    cleared: int = NEVER  # headdim 128, causal: of the last so many sections sums of dq are cleared


BUILDS = {  # the fastest of each official shape on one H200: NOTES.md
    64: Build(THREE),
    128: Build(AHEAD),
    256: Build(WIDE, section_bytes=520 * MB),  # dk and dv of 128 kv rows do not fit the registers
}
LENGTHS = {  # headdim, causal -> classes: the longest sequence and its section_bytes, cuts, lead, once, cleared
    (64, True): (
        (512, (16 * MB, False, 0, True)),
        (1024, (8 * MB, False, 0, True)),
        (2048, (16 * MB,)),
    ),
    (64, False): ((512, (8 * MB, False, 0, True)), (2048, (16 * MB,))),
    (128, True): (
        (1024, (16 * MB, False, 0, False, 1)),
        (8192, (16 * MB, False, 2)),
        (NEVER, (16 * MB,)),
    ),
    (128, False): ((512, (8 * MB,)), (4096, (4 * MB, False, 2)), (NEVER, (16 * MB, True))),
}


def build_for(headdim: int, seqlen: int, causal: bool, general: bool = False) -> Build:
    """The fastest build of a class of shapes on one H200: NOTES.md.

    `general`: k and v have other heads or rows than q, or an input does not lie as the plain build wants it.
    """
    build = BUILDS[headdim]
    for longest, choices in LENGTHS.get((headdim, causal), ()):
        if seqlen <= longest:
            build = Build(build.rung, build.flags, *choices)
            break
    return build._replace(flags=(*build.flags, GENERAL)) if general else build


class Keys(ctypes.Structure):
    """`struct Keys` of rows.cuh, field by field."""

    _fields_ = [(name, ctypes.c_int) for name in ("seqlen", "nheads", "group")]


class Strides(ctypes.Structure):
    """`struct Strides` of rows.cuh, field by field."""

    _fields_ = [(name, ctypes.c_longlong) for name in ("batch", "head", "row")]


class Part(ctypes.Structure):
    """`struct Part` of wide.cu, field by field."""

    _fields_ = [(name, ctypes.c_int) for name in ("head", "kv_tile", "kv_tiles")]


class Spare(ctypes.Structure):
    """`struct Spare` of spare.cuh, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("o", "d_o", "lse", "dq", "queue", "ready", "done")),
        *((n, ctypes.c_int) for n in ("lead", "lag")),
    ]


class Stored(ctypes.Structure):
    """`struct Stored` of spare.cuh, field by field."""

    _fields_ = [("warps", ctypes.c_void_p), ("sections", ctypes.c_int)]


class Params(ctypes.Structure):
    """`struct Params` of backward.cu, field by field."""

    _fields_ = [
        ("stats", ctypes.c_void_p),
        ("dq_sum", ctypes.c_void_p),
        ("dk", ctypes.c_void_p),
        ("dv", ctypes.c_void_p),
        ("taken", ctypes.c_void_p),
        ("parts", ctypes.c_void_p),
        ("whole", ctypes.c_int),
        ("seqlen", ctypes.c_int),
        ("heads", ctypes.c_int),
        ("section", ctypes.c_int),
        ("causal", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("scale_log2", ctypes.c_float),
        ("keys", Keys),
        ("spare", Spare),
        ("dk_at", Strides),
        ("dv_at", Strides),
        ("stored", Stored),
    ]


class Passes(ctypes.Structure):
    """`struct Passes` of passes.cuh, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("o", "d_o", "lse", "stats", "dq_sum", "dq", "done")),
        ("o_at", Strides),
        ("do_at", Strides),
        *((n, ctypes.c_int) for n in ("seqlen", "heads", "section", "nheads")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class PackedParams(ctypes.Structure):
    """`struct Params` of packed.cu, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("edges", "stats", "dq_sum", "dk", "dv", "taken")),
        *((n, ctypes.c_int) for n in ("seqlen", "kv_heads", "group")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class ThreeParams(ctypes.Structure):
    """`struct Params` of three.cu, field by field."""

    _fields_ = [
        ("passes", Passes),
        ("dk", ctypes.c_void_p),
        ("dv", ctypes.c_void_p),
        ("causal", ctypes.c_int),
        ("keys", Keys),
    ]


THREE_THREADS, THREE_WARPS = 512, 16


def three_smem_bytes() -> int:
    """k, v; four slots of q and do; dS three times; 8 KB for each of the passes' three warps; lse and delta; halves; records; barriers."""
    tiles = 5 * KV_ROWS[THREE] * 128 + 2 * 4 * 64 * 128
    return (
        tiles + 3 * 8192 + 2 * 4 * 64 * 16 + 128 + 8 * 16 + 8 * (2 * 4 + 2 + 3 + 17 + THREE_WARPS)
    )


def three_blocks(
    heads: int, seqlen: int, seqlen_k: int, section: int, at_once: int = NEVER
) -> tuple[int, int]:
    """Blocks of a grid whose spare warps do the passes (passes.cuh), and its sections of heads.

    `at_once`: how many main blocks stay and take kv blocks until none is left; more than those are not launched.
    """
    widths = [min(section, heads - first) for first in range(0, heads, section)]
    ends = [*widths[:2], *widths[-2:]]  # blocks of their own
    passes = sum(-(-2 * width * -(-seqlen // 64) // THREE_WARPS) for width in ends)
    return passes + min(heads * -(-seqlen_k // KV_ROWS[THREE]), at_once), len(widths)


def fused_smem_bytes() -> int:
    """`backward`: k, v; three slots of q, two of do; dS twice; dq of a tile; lse and delta; three spare warps; records; barriers, a word."""
    tiles = 2 * 128 * 256 + (3 + 2) * 64 * 256 + 2 * 128 * 64 * 2
    barriers = 8 * (2 * 3 + 2 + 4 + 3 + 1 + 2)
    return tiles + 64 * 128 * 4 + (3 + 2) * 64 * 4 + 3 * 8 * 576 + 128 + barriers


def packed_smem_bytes() -> int:
    """As `backward` without spare warps, with the first and last query row of 128 kv rows, and records half as long."""
    return fused_smem_bytes() - 3 * 8 * 576 + 128 * 8 - 64 - 8 * 6


PIECES = 2  # of a kv block of the last, partly filled wave


def whole_blocks(blocks: int, at_once: int, seqlen: int) -> int:
    """How many kv blocks are one item each, full waves of them; a piece has a tile of query rows at least."""
    return blocks if seqlen <= 64 * (PIECES - 1) else blocks - blocks % at_once


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
@functools.lru_cache(maxsize=None)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _even(t: torch.Tensor) -> bool:
    """Whether all heads of all batches lie at one distance."""
    batch, heads = t.shape[:2]
    return batch == 1 or heads == 1 or t.stride(0) == heads * t.stride(1)


def _strides(t: torch.Tensor) -> Strides:
    """Of [batch, heads, rows]."""
    return Strides(*t.stride()[:3])


def _gradient(t: torch.Tensor, device: torch.device | str | None = None) -> torch.Tensor:
    """Memory for the gradient of q, k or v, on their device or the one given."""
    order = torch.contiguous_format if t.shape[-1:] == (64,) else torch.preserve_format
    return torch.empty_like(t, device=device, memory_format=order)


def _bind_context(device: int) -> None:
    """Make the GPU's context this thread's. One of autograd's has none until something allocates."""
    if int(_ok(driver.cuCtxGetCurrent())) == 0:
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))


def _tensor_map(t: torch.Tensor, rows: int, general: bool) -> object:
    """[batch, heads, seqlen, headdim] in boxes of rows x 64; rows past the end read as 0.

    Of four dimensions if `general`, else of three: its heads are even.
    """
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    batch, heads, seqlen, headdim = t.shape
    each, whole = (t.stride(1) if heads > 1 else t.stride(0)), t.stride(0)
    sizes = [headdim, seqlen, heads, batch] if general else [headdim, seqlen, heads * batch]
    steps = [t.stride(2), each, whole][: len(sizes) - 1]
    # how far apart things lie of which there is one does not matter, but 16 bytes must divide it
    steps = [step if size > 1 else headdim for step, size in zip(steps, sizes[1:], strict=True)]
    return _ok(
        driver.cuTensorMapEncodeTiled(
            MAP_TYPES[t.dtype],
            len(sizes),
            t.data_ptr(),
            [u64(size) for size in sizes],
            [u64(step * 2) for step in steps],
            [u32(size) for size in (64, rows, 1, 1)[: len(sizes)]],
            [u32(1)] * len(sizes),
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


class _Clear:
    """Zeros in words of the work space."""

    def __init__(self, pointer: ctypes.c_void_p, words: int) -> None:
        self.pointer, self.words = pointer, words

    def __call__(self, stream: int) -> None:
        _ok(driver.cuMemsetD32Async(self.pointer.value, 0, self.words, stream))


class Plan:
    """The launches of one call, ready to go except for what is allocated per call, and the stream."""

    def __init__(
        self, q, k, v, o, d_o, causal: bool, scale: float, build: Build, begins=None
    ) -> None:
        self.begins = begins  # of packed sequences
        batch, nheads, self.seqlen, headdim = q.shape
        self.heads, self.tiles, self.seqlen_k = batch * nheads, -(-q.shape[2] // 64), k.shape[2]
        self.group, self.scale, self.causal = nheads // k.shape[1], scale, causal
        self.build = build
        self.section = max(
            1, min(self.heads, build.section_bytes // (8 * self.seqlen * headdim))
        )  # heads
        self.keys = Keys(self.seqlen_k, nheads, self.group)
        self.steps = [_strides(t) for t in (o, d_o)]
        self.dq_at, *self.kv_at = (_strides(_gradient(t, device="meta")) for t in (q, k, v))
        self.each_at = self.kv_at  # where the main kernel writes dk and dv, of each head of q
        self.d_o = ctypes.c_void_p(d_o.data_ptr())
        self.o, self.lse, self.stats, self.dq_sum, self.dq, self.dk, self.dv, self.each_dk, self.each_dv, self.parts, self.done = (
            ctypes.c_void_p() for _ in range(11)
        )  # fmt: skip
        self.stats_floats = self.heads * self.tiles * (512 if build.rung == THREE else 128)
        self.sum_floats = self.heads * self.tiles * 64 * headdim
        self.counters = 0  # words by which blocks of a grid know of each other
        self.tail_floats, self.tail = (
            0,
            ctypes.c_void_p(),
        )  # dk and dv of pieces; dS, and sums of dq
        self.ds_floats, self.ds_sums = 0, ctypes.c_void_p()
        self.device = q.device
        self.part_values = 0
        if self.group > 1 and begins is None:
            of_head = self.seqlen_k * headdim
            self.part_values = 2 * self.heads * of_head
            self.each_at = [Strides(nheads * of_head, of_head, headdim)] * 2
        dtype = (BF16,) if q.dtype == torch.bfloat16 else ()
        function = functools.partial(_function, headdim=headdim, device=q.device.index)
        rows, general = KV_ROWS[build.rung], GENERAL in build.flags
        flags = (*((GENERAL,) if general else ()), *dtype)
        self.passes = functools.partial(function, file=PASSES, flags=flags)
        once = (ONCE,) if build.once else ()
        self.main = functools.partial(
            function, file=FILES[build.rung], flags=(*build.flags, *once, *dtype)
        )
        maps = [_tensor_map(t, n, general) for t, n in ((q, 64), (k, rows), (v, rows), (d_o, 64))]
        kinds = {WIDE: self._wide, THREE: self._three, PACKED: self._packed}
        self.params = None
        self.dq_sum_after, self.dq_after = ctypes.c_void_p(), ctypes.c_void_p()
        self.contiguous = o.is_contiguous() and d_o.is_contiguous() and not general
        self.launches = kinds.get(build.rung, self._fused)(maps, headdim)
        if self.part_values:
            chunks = self.seqlen_k * headdim // 8
            kv_heads, kv_nheads = self.heads // self.group, k.shape[1]
            sizes = map(ctypes.c_int, (kv_heads, self.group, chunks, kv_nheads))
            arguments = self.parts, self.dk, self.dv, *sizes, *self.kv_at
            grid = -(-2 * kv_heads * chunks // 256)
            after = self.passes("sum_group", smem_bytes=0)
            self.launches.append(_Launch(after, grid, 256, 0, *arguments))

    def _preprocess(self, heads: int, first_cleared: int = 0) -> _Launch:
        """Row sums, zeroed counters, zeroed sums of dq from a head on."""
        kernel = self.passes("preprocess", smem_bytes=0)
        sizes = self.seqlen, self.keys.nheads, self.counters, first_cleared * self.tiles
        numbers = map(ctypes.c_int, sizes)
        pointers = self.o, self.d_o, self.lse, self.stats, self.dq_sum, self.done
        return _Launch(kernel, heads * self.tiles, 256, 0, *pointers, *numbers, *self.steps)

    def _fused(self, maps: list, headdim: int) -> list[_Launch]:
        """Row sums, one kernel of five products, and dq out of its sums."""
        kv_blocks = -(-self.seqlen_k // KV_ROWS[AHEAD])
        blocks = self.heads * kv_blocks
        at_once = _multiprocessors(self.device)
        cuts = self.build.cuts and not self.causal  # causal blocks get shorter towards the end
        whole = whole_blocks(blocks, at_once, self.seqlen) if cuts else blocks
        items = whole + (blocks - whole) * PIECES
        lead, lag = self._spare_passes(kv_blocks, at_once)
        self.words = 1 + blocks - whole
        stored = self._stored_sections()
        lead = 0 if stored else lead  # they need the same warps
        self.counters = self.words + (blocks if stored else 1 + 2 * self.sections if lead else 0)
        self.tail_floats = (blocks - whole) * PIECES * 2 * KV_ROWS[AHEAD] * headdim
        self.params = Params(
            *(None,) * 6, whole, self.seqlen, self.heads, self.section, int(self.causal), self.scale,
            self.scale * math.log2(math.e), self.keys, Spare(*(None,) * 7, lead, lag), *self.each_at, Stored(None, stored),
        )  # fmt: skip
        smem, grid = fused_smem_bytes(), min(items, at_once)
        flags = (*self.main.keywords["flags"], *((STORED,) if stored else ()))
        kernel = self.main("backward", smem_bytes=smem, flags=flags)
        main = _Launch(kernel, grid, 384, smem, *maps, self.params)
        self.heads_before = lead * self.section if lead else self.heads
        self.heads_after = self.heads - (self.sections - lag) * self.section if lead else self.heads
        before = self._preprocess(self.heads_before, stored * self.section)
        return [before, main, self._postprocess(self.heads_after, headdim)]

    def _postprocess(self, heads: int, headdim: int) -> _Launch:
        """dq of the last so many heads out of its sums."""
        smem = 64 * (headdim + 8) * 2
        after = self.passes("postprocess", smem_bytes=smem)
        numbers = ctypes.c_float(self.scale), *map(ctypes.c_int, (self.seqlen, self.keys.nheads))
        sizes = heads * self.tiles, 256, smem
        return _Launch(after, *sizes, self.dq_sum_after, self.dq_after, *numbers, self.dq_at)

    def _packed(self, maps: list, headdim: int) -> list[_Launch]:
        """Who sees whom, row sums, one kernel of five products, and dq out of its sums."""
        kv_blocks, kv_heads = -(-self.seqlen // KV_ROWS[PACKED]), self.heads // self.group
        self.counters, self.tail_floats = 1, 2 * KV_ROWS[PACKED] * kv_blocks
        log2_scale = self.scale * math.log2(math.e)
        sizes = self.seqlen, kv_heads, self.group, self.scale, log2_scale
        self.params = PackedParams(*(None,) * 6, *sizes)
        edges = ctypes.c_void_p(self.begins.data_ptr())
        numbers = map(ctypes.c_int, (len(self.begins) - 1, self.causal, self.seqlen))
        find = self.main("find_edges", smem_bytes=0)
        smem = packed_smem_bytes()
        grid = min(kv_heads * kv_blocks, _multiprocessors(self.device))
        kernel = self.main("backward", smem_bytes=smem)
        return [
            _Launch(find, kv_blocks, KV_ROWS[PACKED], 0, edges, *numbers, self.tail),
            self._preprocess(self.heads),
            _Launch(kernel, grid, 384, smem, *maps, self.params),
            self._postprocess(self.heads, headdim),
        ]

    def _spare_passes(self, kv_blocks: int, at_once: int) -> tuple[int, int]:
        """How many sections of heads spare warps are ahead and behind; (0, _): they have nothing to do."""
        self.sections = -(-self.heads // self.section)
        lead, lag = self.build.lead, -(-at_once // (self.section * kv_blocks))
        return (lead if self.contiguous and lead + lag < self.sections else 0), lag

    def _stored_sections(self) -> int:
        """Of how many sections of heads nobody clears the sums of dq (spare.cuh)."""
        able = self.causal and GENERAL not in self.build.flags
        return max(0, self.sections - self.build.cleared) if able else 0

    def _three(self, maps: list, _headdim: int) -> list[_Launch]:
        """One kernel, whose spare warps do the passes."""
        none = (None,) * 7
        sizes = self.seqlen, self.heads, self.section, self.keys.nheads
        passes = Passes(
            *none, *self.steps, *sizes, self.scale, not_0(self.scale * math.log2(math.e))
        )
        once, at_once = self.build.once, _multiprocessors(self.device)
        self.params = ThreeParams(passes, None, None, int(self.causal), self.keys)
        sizes = self.heads, self.seqlen, self.seqlen_k, self.section
        grid, sections = three_blocks(*sizes, *(() if once else (at_once,)))
        self.counters = 2 * sections + 1
        smem = three_smem_bytes()
        kernel = self.main("backward", smem_bytes=smem)
        return [
            _Clear(self.done, self.counters),
            _Launch(kernel, grid, THREE_THREADS, smem, *maps, self.params),
        ]

    def _wide(self, maps: list, headdim: int) -> list[_Launch]:
        """Row sums; for each part of dS a kernel for it, dk and dv, and one for dq."""
        self.sum_floats = 0
        packed = self.causal and GENERAL not in self.build.flags
        parts = ds_parts(
            self.heads, self.tiles, -(-self.seqlen_k // 64), packed, self.build.section_bytes
        )
        self.ds_floats = 2048 * max(part.ds_tiles for part in parts)
        cut = any(part.kv_tile for part in parts)
        self.tail_floats = self.ds_floats + (64 * self.tiles * headdim if cut else 0)
        scale = ctypes.c_float(self.scale)
        sizes = ctypes.c_int(self.seqlen), ctypes.c_int(self.causal), scale
        log2_scale = ctypes.c_float(self.scale * math.log2(math.e))
        launches, (dkdv, dq) = [self._preprocess(self.heads)], wide_shapes(headdim)
        kernels = [self.main(n, smem_bytes=x.smem_bytes) for n, x in (("dkdv", dkdv), ("dq", dq))]
        results = self.stats, self.each_dk, self.each_dv
        for one in parts:
            part = Part(one.head, one.kv_tile, one.kv_tiles)
            arguments = *sizes, log2_scale, self.keys, *self.each_at, self.tail, part
            blocks = one.heads * one.kv_tiles
            at = blocks, dkdv.threads, dkdv.smem_bytes
            launches.append(_Launch(kernels[0], *at, *maps, *results, *arguments))
            at = one.heads * -(-self.seqlen // dq.rows), dq.threads, dq.smem_bytes
            sums = self.tail, self.ds_sums, self.dq
            launches.append(
                _Launch(kernels[1], *at, maps[1], *sums, *sizes, self.keys, self.dq_at, part)
            )
        return launches

    def point_at(self, o, lse, dq, dk, dv) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts a call's tensors into the arguments; returns the work space, torch's memory, to hold while it is queued."""
        words = self.stats_floats, self.sum_floats, self.tail_floats, self.counters
        space = torch.empty(sum(words), dtype=torch.float32, device=o.device)
        self.stats.value, self.dq_sum.value, self.tail.value, self.done.value = (
            space.data_ptr() + 4 * sum(words[:i]) for i in range(4)
        )
        self.ds_sums.value = self.tail.value + 4 * self.ds_floats
        parts = torch.empty(self.part_values, dtype=dk.dtype, device=o.device)
        self.o.value, self.lse.value = o.data_ptr(), lse.data_ptr()
        self.dq.value, self.dk.value, self.dv.value = (x.data_ptr() for x in (dq, dk, dv))
        self.parts.value = self.each_dk.value = parts.data_ptr()
        self.each_dv.value = parts.data_ptr() + self.part_values  # half of it, two bytes each
        if not self.part_values:
            self.each_dk.value, self.each_dv.value = self.dk.value, self.dv.value
        if not self.sum_floats:
            self.dq_sum.value = None
        params = self.params
        if params is not None:
            params.dk, params.dv = self.each_dk.value, self.each_dv.value
            pointers = params.passes if isinstance(params, ThreeParams) else params
            pointers.stats, pointers.dq_sum = self.stats.value, self.dq_sum.value
        if isinstance(params, PackedParams):
            params.taken, params.edges = self.done.value, self.tail.value
            self.dq_after.value, self.dq_sum_after.value = self.dq.value, self.dq_sum.value
        if isinstance(params, Params):
            params.taken, params.parts = self.done.value, self.tail.value
            spare, first = params.spare, self.heads - self.heads_after
            spare.o, spare.d_o, spare.lse, spare.dq = (
                x.value for x in (self.o, self.d_o, self.lse, self.dq)
            )
            spare.queue = self.done.value + 4 * self.words
            spare.ready = spare.queue + 4
            spare.done = spare.ready + 4 * self.sections
            params.stored.warps = spare.queue  # a plan has one of the two
            self.dq_after.value = self.dq.value + 2 * first * self.seqlen * 128
            self.dq_sum_after.value = self.dq_sum.value + 4 * first * self.tiles * 64 * 128
        if isinstance(params, ThreeParams):
            params.passes.o, params.passes.d_o = self.o.value, self.d_o.value
            params.passes.dq = self.dq.value
            params.passes.lse, params.passes.done = self.lse.value, self.done.value
        return space, parts

    def __call__(self, o, lse, dq, dk, dv, stream: int) -> None:
        """Queues the launches; the work space is given back in stream order."""
        space = self.point_at(o, lse, dq, dk, dv)
        for launch in self.launches:
            launch(stream)
        del space


_plans: dict[tuple, Plan] = {}


def _check(q, k, v, o, lse, do, causal: bool) -> None:
    """Raises NotImplementedError away from a GPU, ValueError for tensors that do not fit together."""
    if not q.is_cuda:
        raise NotImplementedError("cuda_hopper_backward runs on a Hopper GPU, not on a CPU")
    if q.dim() != 4 or q.dtype not in MAP_TYPES or q.shape[3] not in BUILDS:
        raise ValueError(
            f"cuda_hopper_backward: q is {tuple(q.shape)} {q.dtype}; wanted fp16 or bf16 "
            f"(batch, heads, seqlen, headdim), headdim one of {sorted(BUILDS)}"
        )
    keys = (q.shape[0], *k.shape[1:3], q.shape[3]) if k.dim() == 4 else None
    for name, t, shape in (("k", k, keys), ("v", v, keys), ("o", o, q.shape), ("do", do, q.shape)):
        if t.dtype != q.dtype or t.device != q.device or t.shape != shape:
            raise ValueError(
                f"cuda_hopper_backward: {name} is {tuple(t.shape)} {t.dtype} on {t.device} beside q "
                f"{tuple(q.shape)} {q.dtype} on {q.device}; wanted o and do like q, and k and v "
                "(batch, kv_heads, seqlen_k, headdim)"
            )
    if keys[1] == 0 or q.shape[1] % keys[1] or (causal and keys[2] < q.shape[2]):
        raise ValueError(
            f"cuda_hopper_backward: q {tuple(q.shape)}, k {tuple(k.shape)}; the heads of k must divide "
            "those of q, and causal attention needs as many keys as queries at least"
        )
    if lse.dtype != torch.float32 or lse.shape != q.shape[:3]:
        raise ValueError(
            f"cuda_hopper_backward: lse is {tuple(lse.shape)} {lse.dtype}; "
            "wanted float32 (batch, heads, seqlen), natural logarithm"
        )


def _ready(t: torch.Tensor) -> torch.Tensor:
    """The tensor as it lies if TMA can read it there, else a copy: addresses and strides of 16 bytes."""
    steps = [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]
    if (
        t.data_ptr() % 16 == 0
        and t.stride(-1) == 1
        and all(s > 0 and s % 8 == 0 for s in steps[:-1])
    ):
        return t
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def _begins(q, k, starts: dict) -> torch.Tensor:
    """Where packed sequences begin; raises ValueError where a keyword of theirs is missing or does not fit."""
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        x = starts.get(name)
        if not isinstance(x, torch.Tensor) or (x.dtype, x.device, x.dim()) != (torch.int32, q.device, 1) or len(x) < 2:  # fmt: skip
            told = f"{tuple(x.shape)} {x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else x
            raise ValueError(
                f"cuda_hopper_backward: {name} is {told}; wanted (sequences + 1) int32 on {q.device}"
            )
    if q.shape[0] != 1 or k.shape[2] != q.shape[2]:
        raise ValueError(
            f"cuda_hopper_backward: q {tuple(q.shape)}, k {tuple(k.shape)}; packed sequences are one "
            "row of tokens, batch 1, of as many keys as queries"
        )
    return starts["cu_seqlens_q"].contiguous()


def _each_sequence(q, k, v, o, lse, do, causal, sm_scale, begins):
    """Packed sequences one after the other, where no kernel takes them at once: the host waits for their lengths."""
    gradients = tuple(torch.zeros_like(t) for t in (q, k, v))
    ends = begins.tolist()
    for begin, end in itertools.pairwise(ends):
        if end > begin:
            rows = [t[:, :, begin:end] for t in (q, k, v, o, lse, do)]
            for into, each in zip(gradients, custom_attention_backward(*rows, causal, sm_scale), strict=True):  # fmt: skip
                into[:, :, begin:end] = each
    return gradients


def custom_attention_backward(
    q, k, v, o, lse, do, causal=True, sm_scale=None, build=None, **packed
):
    """Gradients of softmax(q kᵀ · sm_scale) v.

    q, o, do (batch, heads, seqlen, headdim), k, v (batch, kv_heads, seqlen_k, headdim) fp16 or bf16, lse (batch,
    heads, seqlen) float32, natural logarithm -> dq, dk, dv as `torch.empty_like` of q, k, v lies; contiguous at
    headdim 64. Query head h reads kv head h // (heads // kv_heads); causal: query i sees key j iff
    j <= i + seqlen_k - seqlen.
    `build` picks another than `build_for` does. At headdim 256 dS is kept in memory, 0.55 GB at a time at most,
    whatever the length; `Build(WIDE, section_bytes=n)` takes n (and 1 KB a row of a head whose dS is more).

    packed: cu_seqlens_q and cu_seqlens_k, int32 (sequences + 1) on the device, which are alike, max_seqlen_q and
    max_seqlen_k, which it has no use for. Each sequence attends to itself alone. At headdim 128 the device reads the
    lengths, all tensors are contiguous or copied, and so are the gradients; else the host waits for the lengths.
    """
    device = q.device.index
    if device is not None and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return custom_attention_backward(q, k, v, o, lse, do, causal, sm_scale, build, **packed)
    begins = None
    if packed:
        _check(q, k, v, o, lse, do, bool(causal))
        begins = _begins(q, k, packed)
        if q.shape[3] != 128:
            return _each_sequence(q, k, v, o, lse, do, causal, sm_scale, begins)
        q, k, v, o, do = (t.contiguous() for t in (q, k, v, o, do))
        build = Build(PACKED)
    q, k, v, o, do = (_ready(t) for t in (q, k, v, o, do))
    lse = lse.contiguous()
    dq, dk, dv = (_gradient(t) for t in (q, k, v))
    tensors = q, k, v, o, do, lse
    key = (
        q.data_ptr(), k.data_ptr(), v.data_ptr(), do.data_ptr(), *((t.shape, t.stride(), t.dtype) for t in tensors),
        device, causal, sm_scale, build, begins if begins is None else (begins.data_ptr(), len(begins)),
        threading.get_ident(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        _check(q, k, v, o, lse, do, bool(causal))
        if q.numel() == 0 or k.numel() == 0:
            return dq.zero_(), dk.zero_(), dv.zero_()
        scale = q.shape[3] ** -0.5 if sm_scale is None else float(sm_scale)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        general = q.shape != k.shape or not all(map(_even, (q, k, v, do)))
        general |= not all(t.is_contiguous() for t in (dq, dk, dv))
        general |= q.shape[3] == 64 and not (o.is_contiguous() and do.is_contiguous())
        general &= begins is None
        chosen = build or build_for(q.shape[3], q.shape[2], bool(causal), general)
        if general and GENERAL not in chosen.flags:
            chosen = chosen._replace(flags=(*chosen.flags, GENERAL))
        _bind_context(device)
        plan = _plans[key] = Plan(q, k, v, o, do, bool(causal), scale, chosen, begins)
    plan(o, lse, dq, dk, dv, torch._C._cuda_getCurrentRawStream(device))
    return dq, dk, dv
