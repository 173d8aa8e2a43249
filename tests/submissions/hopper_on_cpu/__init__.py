"""Runs the kernels of cuda_hopper_backward on a CPU, their source unchanged, and knows what they should give.

sm90.cuh here is the twin of the kernels' sm90.cuh: it plays warps, wgmma, TMA and barriers. g++ compiles the kernel with it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.submissions.test_cuda_ladders import hashed, spared

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "submissions" / "cuda_hopper_backward"
KINDS = {"three.cu": "ITEMS", "passes.cu": "PASSES", "wide.cu": "WIDE", "packed.cu": "PACKED"}
#: To compile a kernel takes longer than to run it: as little as may be is done for its speed.
#: A fiber jumps from stack to stack, which -D_FORTIFY_SOURCE, some compilers' default, takes for a mistake.
OPTIONS = ("-std=c++17", "-Og", "-fno-exceptions", "-w", "-fPIC", "-U_FORTIFY_SOURCE")
EARLY, LATE, RANDOM = range(3)
_home = tempfile.TemporaryDirectory(prefix="hopper-on-cpu-")  # of the twin


class TensorMap(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), *((n, ctypes.c_int32) for n in ("columns", "rows", "heads", "box_rows")),
                *((n, ctypes.c_int64) for n in ("batch_step", "head_step", "row_step")), ("pad", ctypes.c_uint8 * 16)]  # fmt: skip


class Strides(ctypes.Structure):
    """`struct Strides` of rows.cuh: of [batch, heads, rows, D], in elements."""

    _fields_ = [(n, ctypes.c_int64) for n in ("batch", "head", "row")]


class Keys(ctypes.Structure):
    """`struct Keys` of rows.cuh."""

    _fields_ = [(n, ctypes.c_int) for n in ("seqlen", "nheads", "group")]


class Part(ctypes.Structure):
    """`struct Part` of wide.cu."""

    _fields_ = [(n, ctypes.c_int) for n in ("head", "kv_tile", "kv_tiles")]


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
        *((n, ctypes.c_void_p) for n in ("stats", "dq_sum", "dk", "dv", "taken", "parts")),
        *((n, ctypes.c_int) for n in ("whole", "seqlen", "heads", "section", "causal")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
        ("keys", Keys),
        ("spare", Spare),
        *((n, Strides) for n in ("dk_at", "dv_at")),
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


class ThreeParams(ctypes.Structure):
    """`struct Params` of three.cu, field by field."""

    _fields_ = [
        ("passes", Passes),
        *((n, ctypes.c_void_p) for n in ("dk", "dv")),
        ("causal", ctypes.c_int),
        ("keys", Keys),
    ]


class KernelFailed(Exception):
    """A deadlock, a misaligned address, an unfenced read: what the twin noticed, where."""


def compile_kernel(
    file: str, headdim: int, flags: tuple[str, ...], cache: Path, edit=None, folder=FOLDER
) -> ctypes.CDLL:
    """`file` (a path inside the submission) as a shared library; `edit` may change its source first."""
    source = (folder / file).read_text()
    source = edit(source) if edit else source
    twin = (HERE / "sm90.cuh").read_text()
    launches = (HERE / "launches.inl").read_text()
    options = ["-shared", f"-DHEADDIM={headdim}", *flags]
    if Path(file).name in KINDS:
        options.append(f"-D{KINDS[Path(file).name]}")
    headers = {x.name: x.read_text() for x in sorted((folder / "kernels").glob("*.cuh"))}
    del headers["sm90.cuh"]  # its twin takes its place
    key = hashlib.sha256(repr((source, twin, launches, headers, options)).encode()).hexdigest()[:20]
    library = cache / f"{key}.so"
    if not library.exists():
        home = cache / key
        home.mkdir(exist_ok=True)
        for name, text in headers.items():
            (home / name).write_text(text)
        (home / "kernel.cu").write_text(source)
        (home / "launch.cpp").write_text(launches.replace("KERNEL_FILE", "kernel.cu"))
        _gxx(*options, f"-I{home}", str(home / "launch.cpp"), "-o", str(library))
    return ctypes.CDLL(str(library))


def _gxx(*arguments: str) -> None:
    """One kernel's code with the twin, of which the compiler has read and compiled its part before."""
    twin = _twin()
    _compile(f"-I{twin}", "-include", "sm90.cuh", *arguments, f"{twin}/twin.o")


@functools.cache
def _twin() -> Path:
    """sm90.cuh precompiled, and an object with what of it is the same for all kernels."""
    home = Path(_home.name)
    header = shutil.copy(HERE / "sm90.cuh", home)
    _compile("-x", "c++-header", header, "-o", f"{header}.gch")
    _compile("-O2", "-DTWIN", "-x", "c++", "-c", header, "-o", f"{home}/twin.o")  # all run in it
    return home


def _compile(*arguments: str) -> None:
    done = subprocess.run(
        ["g++", *OPTIONS, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(done.stderr[:4000])


def changed_by(old: str, new: str):
    """An `edit` of a kernel's source; `old`, a pattern, must be in it."""

    def edit(source: str) -> str:
        source, changed = re.subn(old, new, source)
        assert changed
        return source

    return edit


def some_order_shows(edit, attempt, most: float) -> None:
    """Fail unless an order of events makes `attempt(timing, seed, edit)` give errors above `most`, or stop."""
    worst = 0.0
    try:
        for timing, seed in [(LATE, 0), *((RANDOM, n) for n in range(4))]:
            errors = attempt(timing, seed, edit)
            worst = max(worst, *np.nan_to_num(list(errors.values()), nan=1e9))
            if worst > most:
                return
    except KernelFailed:
        return
    pytest.fail(f"all orders of events gave right gradients, worst error {worst:.1e}")


@functools.cache
def _read(test: str, folder: Path) -> list[tuple[str, bytes]]:
    files = sorted((Path(test), *HERE.glob("*.*"), *(folder / "kernels").glob("*.*")))
    return [(path.name, path.read_bytes()) for path in files]


@functools.cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def shown_before(test: str, mistake: object, folder=FOLDER) -> bool:
    """Whether `mistake` of the file `test` showed in these very kernels on this very twin."""
    return spared(hashed(_read(test, folder), mistake), _compiler())


def have_compiler() -> bool:
    return shutil.which("g++") is not None


def aligned(shape, dtype, fill=None):
    """An array whose memory starts at a multiple of 64 bytes, as a GPU's allocations do."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : start + size].view(dtype).reshape(shape)
    if fill is not None:
        array[...] = fill
    return array


def reference(q, k, v, d_o, causal, scale):
    """o, lse, dq, dk, dv in float64; [heads, S, D] each. Causal: the last row sees all keys."""
    q, k, v, d_o = (x.astype(np.float64) for x in (q, k, v, d_o))
    s = q @ np.swapaxes(k, 1, 2) * scale
    if causal:
        s[:, np.triu(np.ones(s.shape[1:], bool), 1 + s.shape[2] - s.shape[1])] = -np.inf
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    p /= total
    o = p @ v
    dp = d_o @ np.swapaxes(v, 1, 2)
    ds = p * (dp - (d_o * o).sum(-1, keepdims=True))
    dq, dk = ds @ k * scale, np.swapaxes(ds, 1, 2) @ q * scale
    lse = (top + np.log(total))[..., 0]
    return o, lse, dq, dk, np.swapaxes(p, 1, 2) @ d_o


def _call(function, *args):
    function.restype = ctypes.c_char_p
    failure = function(*args).decode()
    if failure:
        raise KernelFailed(failure)


def _pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def to_bf16(x):
    """float32 -> the bits of bfloat16, to nearest, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def numbers(x):
    """Values of an fp16 array, or of one of bfloat16 bits."""
    if x.dtype == np.float16:
        return x.astype(np.float64)
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Problem:
    """Inputs of one case, and the kernels' outputs beside the right ones.

    `heads` of q lie in `batch` batches; one of k and v serves `group` of them. `rows_first`: q, k, v, o and do are
    views of [batch, rows, heads, D], as models have them, and so are dq, dk and dv but at headdim 64.
    """

    def __init__(self, heads, seqlen, headdim, causal, scale=None, seed=0, *, seqlen_k=None, group=1,
                 batch=1, rows_first=False, bf16=False):  # fmt: skip
        rng = np.random.default_rng(seed)
        self.heads, self.seqlen, self.headdim, self.causal = heads, seqlen, headdim, causal
        self.seqlen_k, self.group, self.batch = seqlen_k or seqlen, group, batch
        self.nheads, self.bf16, self.rows_first = heads // batch, bf16, rows_first
        self.scale = headdim**-0.5 if scale is None else scale
        self.tiles = -(-seqlen // 64)
        kv_heads = heads // group
        self.q, self.d_o = (self._view(heads, seqlen, rng.standard_normal) for _ in range(2))
        self.k, self.v = (
            self._view(kv_heads, self.seqlen_k, rng.standard_normal) for _ in range(2)
        )
        flat = [numbers(x).reshape(-1, *x.shape[2:]) for x in (self.q, self.k, self.v, self.d_o)]
        flat[1], flat[2] = (np.repeat(x, group, 0) for x in flat[1:3])
        o, lse, *self.expected = reference(*flat, causal, self.scale)
        for i in (1, 2):
            self.expected[i] = (
                self.expected[i].reshape(kv_heads, group, self.seqlen_k, headdim).sum(1)
            )
        self.o = self._view(heads, seqlen, o.reshape)
        self.lse = aligned((heads, seqlen), np.float32, lse)
        dtype, nothing = (np.uint16, 0x7FC0) if bf16 else (np.float16, np.nan)
        self.rows_first &= headdim != 64  # of the gradients
        each = ((heads, seqlen), *((kv_heads, self.seqlen_k),) * 2)
        self.dq, self.dk, self.dv = (
            self._view(*n, lambda shape: np.full(shape, np.nan)) for n in each
        )
        self.parts = aligned((2, batch, self.nheads, self.seqlen_k, headdim), dtype, nothing)
        self.stats = aligned(
            (heads, self.tiles, 2, 64, 4), np.float32, np.nan
        )  # of 64 rows, at most
        self.dq_sum = aligned((heads, self.tiles, 64 * headdim), np.float32, np.nan)

    def _view(self, heads, rows, values):
        """[batch, heads, rows, D] of 16-bit floats."""
        shape = (self.batch, heads // self.batch, rows, self.headdim)
        x = np.asarray(values(shape), np.float32)
        x = to_bf16(x) if self.bf16 else x.astype(np.float16)
        order = (0, 2, 1, 3) if self.rows_first else (0, 1, 2, 3)
        memory = aligned(tuple(shape[i] for i in order), x.dtype, x.transpose(order))
        return memory.transpose(order)

    def strides(self, x):
        """Of [batch, heads, rows], in elements."""
        return [step // 2 for step in x.strides[:3]]

    def maps(self, kv_rows):
        """q, k, v and do; a head past the first batch is one of the first where the kernel has no batches."""
        found = []
        for x, rows in ((self.q, 64), (self.k, kv_rows), (self.v, kv_rows), (self.d_o, 64)):
            sizes = (self.headdim, x.shape[2], x.shape[1], rows)
            found.append(TensorMap(x.ctypes.data, *sizes, *self.strides(x)))
        return (TensorMap * 4)(*found)

    def scales(self):
        return ctypes.c_float(self.scale), ctypes.c_float(self.scale * math.log2(math.e))

    def log2_scale(self):
        """As `not_0` of the submissions."""
        scale = self.scale * math.log2(math.e)
        return scale if abs(scale) > 1e-30 else 1e-30

    def preprocess(self, library, timing=RANDOM, seed=0, counters=0, heads=None, first=0):
        """Row sums of all heads or the first `heads`; zeros in counters and, from head `first` on, in the sums of dq."""
        self.counters = aligned((max(counters, 1),), np.uint32, 1 << 20)
        steps = [ctypes.byref(Strides(*self.strides(x))) for x in (self.o, self.d_o)]
        blocks = (self.heads if heads is None else heads) * self.tiles
        _call(library.run_preprocess, _pointer(self.o), _pointer(self.d_o), _pointer(self.lse), _pointer(self.stats),
              _pointer(self.dq_sum), _pointer(self.counters), self.seqlen, self.nheads, counters, first * self.tiles, *steps, blocks, timing, seed)  # fmt: skip

    def postprocess(self, library, timing=RANDOM, seed=0, first=0):
        """dq of the heads from `first` on; of one batch where not all."""
        dq, at = self.dq[:, first:], Strides(*self.strides(self.dq))
        _call(library.run_postprocess, _pointer(self.dq_sum[first:]), _pointer(dq), self.scales()[0], self.seqlen,
              self.nheads, ctypes.byref(at), (self.heads - first) * self.tiles, timing, seed)  # fmt: skip

    def sum_group(self, library):
        """dk and dv of the heads of k and v; nothing to do where each serves one head of q."""
        if self.group > 1:
            chunks = self.seqlen_k * self.headdim // 8
            kv_heads = self.heads // self.group
            blocks = -(-2 * kv_heads * chunks // 256)
            at = [ctypes.byref(Strides(*self.strides(x))) for x in (self.dk, self.dv)]
            _call(library.run_sum_group, _pointer(self.parts), _pointer(self.dk), _pointer(self.dv), kv_heads,
                  self.group, chunks, self.nheads // self.group, *at, blocks, EARLY, 0)  # fmt: skip

    def kv_gradients(self):
        """Where the main kernel writes dk and dv: one for each head of q."""
        return (self.dk, self.dv) if self.group == 1 else (self.parts[0], self.parts[1])

    def wide(self, library, timing=RANDOM, seed=0, parts=None):
        """For each part of dS a kernel for it, dk and dv, and one for dq; `parts` as `ds_parts` of the submission gives them."""
        kv_tiles = -(-self.seqlen_k // 64)
        parts = parts or [(0, self.heads, 0, kv_tiles, self.heads * kv_tiles * self.tiles)]
        ds = aligned((max(x[-1] for x in parts), 64, 64), self.q.dtype)
        sums = aligned((self.tiles, 64, 256), np.float32, np.nan)
        maps, (scale, log2_scale) = self.maps(64), self.scales()
        sizes = self.seqlen, int(self.causal), scale
        keys = ctypes.byref(Keys(self.seqlen_k, self.nheads, self.group))
        dq_at, *kv_at = (
            ctypes.byref(Strides(*self.strides(x))) for x in (self.dq, *self.kv_gradients())
        )
        results = [_pointer(x) for x in (self.stats, *self.kv_gradients())]
        for head, heads, *of_head, _tiles in parts:
            part = ctypes.byref(Part(head, *of_head))
            ds[...] = 0x7FC0 if self.bf16 else np.nan
            how = (_pointer(ds), part, heads * of_head[1], 384, timing, seed)
            _call(library.run_dkdv, maps, *results, *sizes, log2_scale, keys, *kv_at, *how)
            sources = map(_pointer, (ds, sums, self.dq))
            how = (dq_at, part, heads * -(-self.seqlen // 128), 384, timing, seed)
            _call(library.run_dq, maps, *sources, *sizes, keys, *how)

    def fused(
        self,
        passes,
        library,
        section=1,
        timing=RANDOM,
        seed=0,
        blocks=2,
        in_pieces=0,
        lead=0,
        lag=0,
        stored=0,
    ):
        """The three launches of headdim 128: a grid of `blocks`, the last `in_pieces` kv blocks in two items.

        Of the first `stored` sections nobody clears the sums of dq.
        With `lead` spare warps do the short passes of most heads; then by one block, as blocks run one after another.
        """
        kv_blocks = self.heads * -(-self.seqlen_k // 128)
        sections, words = -(-self.heads // section), 1 + in_pieces
        before = min(self.heads, lead * section) if lead else self.heads
        after = section * max(0, sections - lag) if lead else 0
        counters = words + (kv_blocks if stored else 1 + 2 * sections)
        self.preprocess(passes, EARLY, 0, counters, before, stored * section)
        parts = aligned((max(in_pieces, 1), 2, 2, 128, 128), np.float32)
        arrays = self.stats, self.dq_sum, *self.kv_gradients(), self.counters, parts
        pointers = (x.ctypes.data for x in arrays)
        sizes = (kv_blocks - in_pieces, self.seqlen, self.heads, section, int(self.causal))
        scales = [x.value for x in self.scales()]
        keys = Keys(self.seqlen_k, self.nheads, self.group)
        queue = self.counters.ctypes.data + 4 * words
        inputs = (x.ctypes.data for x in (self.o, self.d_o, self.lse, self.dq))
        spare = Spare(*inputs, queue, queue + 4, queue + 4 + 4 * sections, lead, lag)
        kv_at = [Strides(*self.strides(x)) for x in self.kv_gradients()]
        params = Params(*pointers, *sizes, *scales, keys, spare, *kv_at, Stored(queue, stored))
        tail = (min(blocks, kv_blocks + in_pieces), 384, timing, seed)
        _call(library.run_backward, self.maps(128), ctypes.byref(params), *tail)
        self.postprocess(passes, EARLY, first=after)

    def three(self, library, section=1, timing=RANDOM, seed=0, stay=None):
        """The kernel of headdim 64, whose spare warps do the passes (passes.cuh).

        `stay` main blocks take items until none is left; None: as many as items, one each (-DONCE=1).
        """
        widths = [min(section, self.heads - first) for first in range(0, self.heads, section)]
        done = aligned((2 * len(widths) + 1,), np.uint32, 0)
        arrays = self.o, self.d_o, self.lse, self.stats, self.dq_sum, self.dq, done
        steps = [Strides(*self.strides(x)) for x in (self.o, self.d_o)]
        sizes = self.seqlen, self.heads, section, self.nheads
        passes = Passes(
            *(x.ctypes.data for x in arrays), *steps, *sizes, self.scale, self.log2_scale()
        )
        gradients = [x.ctypes.data for x in self.kv_gradients()]
        keys = Keys(self.seqlen_k, self.nheads, self.group)
        params = ThreeParams(passes, *gradients, int(self.causal), keys)
        blocks = sum(-(-2 * wide * self.tiles // 16) for wide in (*widths[:2], *widths[-2:]))
        blocks += stay or self.heads * -(-self.seqlen_k // 192)
        _call(library.run_backward, self.maps(192), ctypes.byref(params), blocks, 512, timing, seed)

    def errors(self):
        """Relative L2 error of dq, dk and dv."""
        found = {}
        for name, got, want in zip(
            ("dq", "dk", "dv"), (self.dq, self.dk, self.dv), self.expected, strict=True
        ):
            off = np.linalg.norm(numbers(got).reshape(want.shape) - want)
            found[name] = float(off / max(np.linalg.norm(want), 1e-12))
        return found
