"""Runs cuda_hopper's forward kernel on a CPU, its source unchanged, on the twin of its sm90.cuh."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopper_on_cpu import FOLDER, HERE, RANDOM, TensorMap, _call, _gxx, aligned

KERNELS = FOLDER.parent / "cuda_hopper" / "kernels"
Array = np.ndarray


class Divisor(ctypes.Structure):
    """`struct Divisor` of the kernel: n / d = n * times >> shift."""

    _fields_ = [("times", ctypes.c_uint32), ("shift", ctypes.c_uint32)]

    @classmethod
    def of(cls, d: int) -> Divisor:
        shift = 31 + (d - 1).bit_length()
        return cls(-(-(1 << shift) // d), shift)


class Problem(ctypes.Structure):
    """`struct Problem` of the kernel, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("o", "lse", "counter")),
        *((n, ctypes.c_uint64) for n in ("o_batch", "o_head", "o_row")),
        *((n, Divisor) for n in ("by_heads", "by_group")),
        *((n, ctypes.c_int) for n in ("batch", "heads", "group")),
        *((n, ctypes.c_int) for n in ("seqlen_q", "seqlen_k", "causal", "reach", "section")),
        ("scale_log2", ctypes.c_float),
        ("list", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Case:
    """One call: lengths, heads, and how q, k, v and o lie in memory."""

    seqlen_q: int
    causal: bool
    seqlen_k: int | None = None  # as seqlen_q
    batch: int = 1
    heads: int = 3
    kv_heads: int | None = None  # as heads
    rows_outside: bool = False  # (batch, seqlen, heads, headdim) in memory, headdim padded by 8
    scale: float | None = None
    q_times: float = 1.0
    section: int = 2
    blocks: int = 2
    seed: int = 3

    @property
    def keys(self) -> int:
        return self.seqlen_q if self.seqlen_k is None else self.seqlen_k

    @property
    def groups(self) -> int:
        return self.kv_heads or self.heads


def to_bits(x: Array, bf16: bool) -> Array:
    """x rounded to fp16 or bf16, as uint16."""
    if not bf16:
        return x.astype(np.float16).view(np.uint16)
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_numbers(bits: Array, bf16: bool) -> Array:
    """What uint16 of fp16 or bf16 mean, in float64."""
    if not bf16:
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def in_memory(shape: tuple[int, int, int, int], rows_outside: bool) -> Array:
    """uint16 [batch, heads, seqlen, headdim], a view whose unused memory is NaN."""
    batch, heads, seqlen, headdim = shape
    if not rows_outside:
        return aligned(shape, np.uint16, 0x7FFF)
    memory = aligned((batch, seqlen, heads, headdim + 8), np.uint16, 0x7FFF)
    return memory[..., :headdim].transpose(0, 2, 1, 3)


def reference(q: Array, k: Array, v: Array, causal: bool, scale: float) -> tuple[Array, Array]:
    """o and lse in float64; k and v [batch, kv_heads, seqlen_k, headdim]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    if causal:  # bottom-right: query i sees the keys up to i + seqlen_k - seqlen_q
        s[..., np.triu(np.ones(s.shape[2:], bool), 1 + s.shape[3] - s.shape[2])] = -np.inf
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p / total @ v, (top + np.log(total))[..., 0]


Sequences = list[tuple[int, int]]  # queries and keys of each


def slices(sequences: Sequences) -> Iterator[tuple[slice, slice]]:
    """Where each one's queries and keys lie."""
    row = key = 0
    for rows, keys in sequences:
        yield slice(row, row + rows), slice(key, key + keys)
        row, key = row + rows, key + keys


class Forward:
    """One build of the kernel."""

    def __init__(
        self, home: Path, headdim: int, full_only: bool = False, bf16: bool = False,
        packed: bool = False,
    ) -> None:  # fmt: skip
        source = (KERNELS / "attention.cu").read_text()
        source = re.sub(
            r'asm volatile\("(?:setmaxnreg|fence\.mbarrier_init)[^;]*;[^;]*;', "", source
        )
        source = source.replace(
            "extern __shared__ __align__(1024) uint8_t smem[];", "SHARED_MEMORY(smem);"
        )
        home.mkdir(exist_ok=True)
        (home / "kernel.cu").write_text(source.replace('#include "sm90.cuh"', ""))
        launches = (HERE / "launches.inl").read_text()
        (home / "launch.cpp").write_text(launches.replace("KERNEL_FILE", "kernel.cu"))
        flags = [f"-DHEADDIM={headdim}", f"-DFULL_ONLY={int(full_only)}", f"-DBF16={int(bf16)}"]
        flags += [f"-DPACKED={int(packed)}", "-DFORWARD=1"]
        _gxx("-shared", *flags, str(home / "launch.cpp"), "-o", str(home / "forward.so"))
        library = ctypes.CDLL(str(home / "forward.so"))
        self._run = library.run_forward
        self._list = library.run_list_blocks if packed else None
        self.headdim, self.bf16 = headdim, bf16
        self.block_rows = {64: 256, 128: 128 if full_only else 192, 256: 128}[headdim]
        self.kv_rows = 128 if full_only else 80 if headdim == 256 else 64

    def errors(self, case: Case, sequences: Sequences | None = None) -> tuple[float, float]:
        """Relative L2 error of o, largest error of lse; the counters must be zero again.

        sequences: (queries, keys) of each, packed; their sums are the case's lengths.
        """
        rng = np.random.default_rng(case.seed)
        q_shape = (case.batch, case.heads, case.seqlen_q, self.headdim)
        kv_shape = (case.batch, case.groups, case.keys, self.headdim)
        q, k, v = (in_memory(shape, case.rows_outside) for shape in (q_shape, kv_shape, kv_shape))
        for x, times in ((q, case.q_times), (k, 1.0), (v, 1.0)):
            x[...] = to_bits(rng.standard_normal(x.shape) * times, self.bf16)
        o = in_memory(q_shape, case.rows_outside)
        lse, counter = aligned(q_shape[:3], np.float32, np.nan), np.zeros(2, np.int32)
        scale = self.headdim**-0.5 if case.scale is None else case.scale
        o_strides = (stride // 2 for stride in o.strides[:3])
        lengths = (case.seqlen_q, case.keys, int(case.causal))
        reach = case.keys - (case.seqlen_q if case.causal else 0)
        group = case.heads // case.groups
        problem = Problem(
            *(x.ctypes.data for x in (o, lse, counter)), *o_strides,
            *(Divisor.of(case.heads), Divisor.of(group)), *(case.batch, case.heads, group), *lengths, reach, case.section,
            scale * math.log2(math.e), self._listed(sequences) if sequences else None,
        )  # fmt: skip
        maps = (TensorMap * 3)(*(self._map(x, rows) for x, rows in ((q, 64), (k, 0), (v, 0))))
        _call(self._run, maps, ctypes.byref(problem), case.blocks, RANDOM, case.seed)
        assert not counter.any()
        q, k, v = (to_numbers(x, self.bf16) for x in (q, k, v))
        want, want_lse = np.empty(q_shape), np.empty(q_shape[:3])
        for rows, keys in slices(sequences or [(case.seqlen_q, case.keys)]):
            of_one = reference(q[:, :, rows], k[:, :, keys], v[:, :, keys], case.causal, scale)
            want[:, :, rows], want_lse[:, :, rows] = of_one
        error = np.linalg.norm(to_numbers(o, self.bf16) - want) / np.linalg.norm(want)
        return float(error), float(np.abs(lse - want_lse).max())

    def _listed(self, sequences: Sequences) -> int:
        """Address of the list that list_blocks makes."""
        begins = [
            np.cumsum([0, *lengths], dtype=np.int32) for lengths in zip(*sequences, strict=True)
        ]
        longest = max(rows for rows, _keys in sequences)
        most = -(-longest // self.block_rows)
        self._blocks = aligned((1 + most * len(sequences), 4), np.int32, -1)
        addresses = (ctypes.c_void_p(x.ctypes.data) for x in (*begins, self._blocks))
        _call(self._list, *addresses, len(sequences), most)
        return self._blocks.ctypes.data

    def _map(self, x: Array, rows: int) -> TensorMap:
        _batch, heads, seqlen, headdim = x.shape
        steps = (stride // 2 for stride in x.strides[:3])
        return TensorMap(x.ctypes.data, headdim, seqlen, heads, rows or self.kv_rows, *steps)
