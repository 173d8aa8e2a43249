"""Runs the kernels of cuda_hopper_backward on a CPU, their source unchanged, and knows what they should give.

sm90.cuh here is the twin of the kernels' sm90.cuh: it plays warps, wgmma, TMA and barriers. g++ compiles the kernel with it.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "submissions" / "cuda_hopper_backward"
KINDS = {
    "passes.cu": "PASSES",
    "two_kernels.cu": "TWO_KERNELS",
    "wide.cu": "TWO_KERNELS",
}
OPTIONS = ("-std=c++17", "-O1", "-w", "-fPIC")
EARLY, LATE, RANDOM = range(3)


class TensorMap(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), *((n, ctypes.c_int32) for n in ("columns", "rows", "heads", "box_rows")),
                ("pad", ctypes.c_uint8 * 40)]  # fmt: skip


class Params(ctypes.Structure):
    """`struct Params` of the fused kernels, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("stats", "dq_sum", "dk", "dv")),
        *((n, ctypes.c_int) for n in ("seqlen", "heads", "section", "causal")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class KernelFailed(Exception):
    """A deadlock, a misaligned address, an unfenced read: what the twin noticed, where."""


def compile_kernel(
    file: str, headdim: int, flags: tuple[str, ...], cache: Path, edit=None
) -> ctypes.CDLL:
    """`file` (a path inside the submission) as a shared library; `edit` may change its source first."""
    source = (FOLDER / file).read_text()
    source = edit(source) if edit else source
    twin = (HERE / "sm90.cuh").read_text()
    launches = (HERE / "launches.inl").read_text()
    options = ["-shared", f"-DHEADDIM={headdim}", *flags]
    if Path(file).name in KINDS:
        options.append(f"-D{KINDS[Path(file).name]}")
    rows = (FOLDER / "kernels" / "rows.cuh").read_text()
    key = hashlib.sha256(repr((source, twin, launches, rows, options)).encode()).hexdigest()[:20]
    library = cache / f"{key}.so"
    if not library.exists():
        home = cache / key
        home.mkdir(exist_ok=True)
        (home / "sm90.cuh").write_text(twin)
        (home / "rows.cuh").write_text(rows)
        (home / "kernel.cu").write_text(source)
        (home / "launch.cpp").write_text(launches.replace("KERNEL_FILE", "kernel.cu"))
        _gxx(*options, f"-I{home}", str(home / "launch.cpp"), "-o", str(library))
    return ctypes.CDLL(str(library))


def _gxx(*arguments: str) -> None:
    done = subprocess.run(
        ["g++", *OPTIONS, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(done.stderr[:4000])


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
    """o, lse, dq, dk, dv in float64; [heads, S, D] each."""
    q, k, v, d_o = (x.astype(np.float64) for x in (q, k, v, d_o))
    s = np.einsum("hid,hjd->hij", q, k) * scale
    if causal:
        s[:, np.triu(np.ones(s.shape[1:], bool), 1)] = -np.inf
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    p /= total
    o = p @ v
    dp = np.einsum("hid,hjd->hij", d_o, v)
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


class Problem:
    """Inputs of one case, and the kernels' outputs beside the right ones."""

    def __init__(self, heads, seqlen, headdim, causal, scale=None, seed=0):
        rng = np.random.default_rng(seed)
        self.heads, self.seqlen, self.headdim, self.causal = heads, seqlen, headdim, causal
        self.scale = headdim**-0.5 if scale is None else scale
        self.tiles = -(-seqlen // 64)
        shape = (heads, seqlen, headdim)
        self.q, self.k, self.v, self.d_o = (
            aligned(shape, np.float16, rng.standard_normal(shape)) for _ in range(4)
        )
        o, lse, *self.expected = reference(self.q, self.k, self.v, self.d_o, causal, self.scale)
        self.o, self.lse = aligned(shape, np.float16, o), aligned((heads, seqlen), np.float32, lse)
        self.dq, self.dk, self.dv = (aligned(shape, np.float16, np.nan) for _ in range(3))
        self.stats = aligned((heads, self.tiles, 2, 64), np.float32, np.nan)
        self.dq_sum = aligned((heads, self.tiles, 64 * headdim), np.float32, np.nan)

    def maps(self, kv_rows):
        return (TensorMap * 4)(
            *(TensorMap(x.ctypes.data, self.headdim, self.seqlen, self.heads, rows)
              for x, rows in ((self.q, 64), (self.k, kv_rows), (self.v, kv_rows), (self.d_o, 64)))
        )  # fmt: skip

    def scales(self):
        return ctypes.c_float(self.scale), ctypes.c_float(self.scale * math.log2(math.e))

    def preprocess(self, library, timing=RANDOM, seed=0):
        _call(library.run_preprocess, _pointer(self.o), _pointer(self.d_o), _pointer(self.lse), _pointer(self.stats),
              _pointer(self.dq_sum), self.seqlen, self.heads * self.tiles, timing, seed)  # fmt: skip

    def postprocess(self, library, timing=RANDOM, seed=0):
        _call(library.run_postprocess, _pointer(self.dq_sum), _pointer(self.dq), self.scales()[0], self.seqlen,
              self.heads * self.tiles, timing, seed)  # fmt: skip

    def two_kernels(self, library, timing=RANDOM, seed=0, wide=False):
        """One kernel for dk and dv, one for dq; `wide`: kernels/wide.cu, with a producer and 128 query rows a block of dq."""
        maps, stats = self.maps(64), _pointer(self.stats)
        tail = (self.seqlen, int(self.causal), *self.scales())
        dkdv_threads = 384 if wide else 256 if self.headdim == 256 else 128
        how = (self.heads * self.tiles, dkdv_threads, timing, seed)
        _call(library.run_dkdv, maps, stats, _pointer(self.dk), _pointer(self.dv), *tail, *how)
        blocks = self.heads * -(-self.seqlen // 128) if wide else self.heads * self.tiles
        how = (blocks, 384 if wide else 128, timing, seed)
        _call(library.run_dq, maps, stats, _pointer(self.dq), *tail, *how)

    def fused(self, library, threads, section=1, timing=RANDOM, seed=0, kv_rows=128):
        pointers = (x.ctypes.data for x in (self.stats, self.dq_sum, self.dk, self.dv))
        sizes = (self.seqlen, self.heads, section, int(self.causal))
        params = Params(*pointers, *sizes, *self.scales())
        tail = (self.heads * -(-self.seqlen // kv_rows), threads, timing, seed)
        _call(library.run_backward, self.maps(kv_rows), ctypes.byref(params), *tail)

    def errors(self):
        """Relative L2 error of dq, dk and dv."""
        found = {}
        for name, got, want in zip(
            ("dq", "dk", "dv"), (self.dq, self.dk, self.dv), self.expected, strict=True
        ):
            found[name] = float(
                np.linalg.norm(got.astype(np.float64) - want) / max(np.linalg.norm(want), 1e-12)
            )
        return found
