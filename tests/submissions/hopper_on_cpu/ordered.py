"""Runs the kernels of cuda_hopper_backward_deterministic on a CPU, their source unchanged.

Blocks run one after another, in the order of their index: who waits for a turn that only a later block gives is told.
"""

from __future__ import annotations

import ctypes

import numpy as np

from . import FOLDER as SISTER
from . import RANDOM, Part, Problem, _call, _pointer, aligned, compile_kernel

FOLDER = SISTER.with_name("cuda_hopper_backward_deterministic")
FILES = {64: "kernels/three.cu", 128: "kernels/backward.cu", 256: "kernels/wide.cu"}
KV_ROWS = {64: 192, 128: 128, 256: 64}


class Order(ctypes.Structure):
    """`struct Order` of order.cuh."""

    _fields_ = [("turns", ctypes.c_void_p), *((n, ctypes.c_int) for n in ("heads", "section", "falling_from"))]  # fmt: skip


class Params(ctypes.Structure):
    """`struct Params` of backward.cu."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("stats", "dq_sum", "dk", "dv")),
        ("order", Order),
        *((n, ctypes.c_int) for n in ("seqlen", "causal")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class Passes(ctypes.Structure):
    """`struct Passes` of passes.cuh."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("o", "d_o", "lse", "stats", "dq_sum", "dq", "done")),
        ("order", Order),
        ("seqlen", ctypes.c_int),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class ThreeParams(ctypes.Structure):
    """`struct Params` of three.cu."""

    _fields_ = [
        ("passes", Passes),
        *((n, ctypes.c_void_p) for n in ("dk", "dv")),
        ("causal", ctypes.c_int),
    ]


class Ordered(Problem):
    """A case whose kv blocks add to dq in the order of `section` and `falling_from`."""

    def run(self, cache, section=1, falling_from=0, timing=RANDOM, seed=0, edit=None):
        flags = ("-DORDERED=1", *(("-DBF16=1",) if self.bf16 else ()))
        library = compile_kernel(FILES[self.headdim], self.headdim, flags, cache, edit, FOLDER)
        passes = compile_kernel("kernels/passes.cu", self.headdim, flags, cache, None, FOLDER)
        self.turns = aligned((self.heads, self.tiles), np.uint32, 0 if self.headdim == 64 else 77)
        self.order = Order(self.turns.ctypes.data, self.heads, section, falling_from)
        self.how = (timing, seed)
        kinds = {64: self._three, 128: self._fused, 256: self._wide}
        kinds[self.headdim](library, passes, section)
        return self.errors()

    def counts(self):
        """How many blocks have added to each tile of each head: [heads, tiles]."""
        return self.turns

    def _before(self, passes, turns):
        inputs = map(_pointer, (self.o, self.d_o, self.lse, self.stats))
        _call(passes.run_preprocess, *inputs, turns, self.seqlen, self.heads * self.tiles, *self.how)  # fmt: skip

    def _blocks(self, rows):
        return self.heads * -(-self.seqlen // rows)

    def _fused(self, library, passes, _section):
        self._before(passes, _pointer(self.turns))
        pointers = (x.ctypes.data for x in (self.stats, self.dq_sum, self.dk, self.dv))
        scales = (x.value for x in self.scales())
        params = Params(*pointers, self.order, self.seqlen, int(self.causal), *scales)
        how = (self._blocks(128), 384, *self.how)
        _call(library.run_backward, self.maps(128), ctypes.byref(params), *how)
        self.postprocess(passes, *self.how)

    def _three(self, library, _passes, section):
        widths = [min(section, self.heads - first) for first in range(0, self.heads, section)]
        done = aligned((len(widths) + 1,), np.uint32, 0)
        arrays = self.o, self.d_o, self.lse, self.stats, self.dq_sum, self.dq, done
        scales = self.scale, self.log2_scale()
        passes = Passes(*(x.ctypes.data for x in arrays), self.order, self.seqlen, *scales)
        params = ThreeParams(passes, self.dk.ctypes.data, self.dv.ctypes.data, int(self.causal))
        passes_blocks = sum(-(-2 * wide * self.tiles // 16) for wide in widths[:2])
        blocks = passes_blocks + 2  # the first of two takes all items, the second finds none
        _call(library.run_backward, self.maps(192), ctypes.byref(params), blocks, 512, *self.how)

    def _wide(self, library, passes, _section):
        """dS of all kv tiles of the first heads but one, then of the last head's first and of the rest."""
        self._before(passes, None)
        scale, log2_scale = self.scales()
        sizes, out = (self.seqlen, int(self.causal), scale), (_pointer(self.dk), _pointer(self.dv))
        ds = aligned((self.heads * self.tiles**2, 64, 64), self.q.dtype)
        sums = aligned((self.tiles, 64, 256), np.float32, np.nan)
        last, tiles = self.heads - 1, self.tiles
        for head, heads, kv_tile, end in (
            (0, last, 0, tiles),
            (last, 1, 0, 1),
            (last, 1, 1, tiles),
        ):
            if heads * (end - kv_tile) == 0:
                continue
            ds[...] = 0x7FC0 if self.bf16 else np.nan
            part = ctypes.byref(Part(head, kv_tile, end - kv_tile))
            how = (_pointer(ds), part, heads * (end - kv_tile), *self.how)
            _call(library.run_dkdv, self.maps(64), _pointer(self.stats), *out, *sizes, log2_scale, *how)  # fmt: skip
            sources = map(_pointer, (ds, sums, self.dq))
            how = (part, heads * -(-self.seqlen // 128), *self.how)
            _call(library.run_dq, self.maps(64), *sources, *sizes, *how)
