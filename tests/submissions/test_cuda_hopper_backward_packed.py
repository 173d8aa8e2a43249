"""Packed sequences of cuda_hopper_backward: the kernel's own source on a CPU against float64."""

import ctypes

import numpy as np
import pytest

import hopper_on_cpu as on_cpu  # isort: skip

FILE = "kernels/packed.cu"
WHOLE, WHOLE_BF16 = 6e-4, 5e-3  # as of plain batches; a lost element of a tile gives more
needs_gxx = pytest.mark.skipif(not on_cpu.have_compiler(), reason="g++ is not on PATH")


class Params(ctypes.Structure):
    """`struct Params` of packed.cu."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("edges", "stats", "dq_sum", "dk", "dv", "taken")),
        *((n, ctypes.c_int) for n in ("seqlen", "kv_heads", "group")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


class Packed(on_cpu.Problem):
    """Sequences of these lengths in one row, each of which attends to itself alone; none: a plain batch."""

    def __init__(self, heads, lengths, causal, *, group=1, bf16=False, seed=0):
        self.lengths = lengths
        super().__init__(heads, sum(lengths), 128, causal, seed=seed, group=group, bf16=bf16)
        kept = ("q", "k", "v", "d_o", "o", "lse", "expected")
        whole = {name: getattr(self, name) for name in kept}
        ends = np.cumsum(lengths)
        for begin, end in zip(ends - lengths, ends, strict=True):
            if end > begin:
                self._expect(whole, slice(begin, end))

    def _expect(self, whole, rows):
        """What the tokens `rows` give by themselves, put into o, lse and the expected gradients."""
        flat = [on_cpu.numbers(whole[n])[0, :, rows] for n in ("q", "k", "v", "d_o")]
        flat[1], flat[2] = (np.repeat(x, self.group, 0) for x in flat[1:3])
        o, lse, dq, dk, dv = on_cpu.reference(*flat, self.causal, self.scale)
        self.o[0, :, rows] = on_cpu.to_bf16(o) if self.bf16 else o
        self.lse[:, rows] = lse
        self.expected[0][:, rows] = dq
        for into, each in ((1, dk), (2, dv)):
            self.expected[into][:, rows] = each.reshape(-1, self.group, *each.shape[1:]).sum(1)

    def run(self, cache, timing=on_cpu.RANDOM, seed=0, edit=None, begins=None):
        """All launches; the errors of dq, dk, dv."""
        flags = ("-DBF16=1",) if self.bf16 else ()
        library = on_cpu.compile_kernel(FILE, 128, flags, cache, edit)
        passes = on_cpu.compile_kernel("kernels/passes.cu", 128, flags, cache)
        kv_blocks = -(-self.seqlen // 128)
        self.preprocess(passes, on_cpu.EARLY, counters=1)
        edges = on_cpu.aligned((kv_blocks * 128, 2), np.int32, 77)
        begins = np.cumsum([0, *self.lengths], dtype=np.int32) if begins is None else begins
        sizes = (len(begins) - 1, int(self.causal), self.seqlen)
        at = [on_cpu._pointer(x) for x in (begins, edges)]
        on_cpu._call(library.run_find_edges, at[0], *sizes, at[1], kv_blocks, timing, seed)
        arrays = edges, self.stats, self.dq_sum, self.dk, self.dv, self.counters
        sizes = self.seqlen, self.heads // self.group, self.group
        scales = (x.value for x in self.scales())
        params = Params(*(x.ctypes.data for x in arrays), *sizes, *scales)
        how = (2, 384, timing, seed)
        on_cpu._call(library.run_backward, self.maps(128), ctypes.byref(params), *how)
        self.postprocess(passes, on_cpu.EARLY)
        return self.errors()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("on_cpu")


@needs_gxx
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("heads", "group", "lengths", "timing"),
    [(1, 1, (330,), on_cpu.RANDOM), (2, 2, (100, 28, 130), on_cpu.LATE), (2, 1, (1, 63, 64, 65, 1), on_cpu.EARLY),
     (4, 4, (17, 0, 200), on_cpu.RANDOM), (3, 3, (5, 5, 5), on_cpu.RANDOM), (4, 2, (192, 64), on_cpu.LATE)],
)  # fmt: skip
def test_gradients(cache, heads, group, lengths, causal, timing):
    """Sequences that begin on a tile and inside one, several in a tile, one of no token; heads in groups."""
    problem = Packed(heads, lengths, causal, group=group, seed=sum(lengths))
    errors = problem.run(cache, timing, seed=heads)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
def test_bf16(cache):
    problem = Packed(4, (70, 120), True, group=2, bf16=True)
    assert 2 * WHOLE < max(problem.run(cache).values()) < WHOLE_BF16


@needs_gxx
@pytest.mark.parametrize("causal", [True, False])
def test_tokens_behind_the_last_sequence_have_no_gradient(cache, causal):
    problem = Packed(2, (100, 100), causal)
    begins = np.array([0, 100], np.int32)
    problem.run(cache, begins=begins)
    for got in (problem.dk, problem.dv, problem.dq):
        assert not on_cpu.numbers(got)[0, :, 100:].any()


# Each takes one thing away that the kernel needs; some order of events must show it.
MISTAKES = {
    "a neighbour's queries are seen": (r"\(uint32_t\)\(column - from\[r\]\) < width\[r\]", "column >= from[r]"),
    "masks only where a row begins": (r" \|\| tile \* M \+ M > all_to", ""),
    "masks only where a row ends": (r"tile \* M < all_from \|\| ", ""),
    "the last sequence of a block is cut": (r"p\.edges\[2 \* last \+ 1\]", "p.edges[2 * kv0 + 1]"),
    "dq of the next head begins at once": (r"tile == first \? tiles - \(end - first\) : 0", "0"),
    "one head of q a group": (r"heads_end = head \+ p\.group", "heads_end = head + 1"),
    "an edge belongs to both": (r"begins\[middle\] <= row", "begins[middle] < row"),
    "dS over one in use": (r"mbar_wait\(through \+ 8 \* before, before_parity\); +// everybody is through with the trip", "//"),
    "k over one in use": (r"mbar_wait\(k_empty, kv_parity\);\n +mbar_expect", "mbar_expect"),
    "dQ is not fenced": (r"proxy_fence\(\); __syncwarp\(\);\n +bulk_add_if", "__syncwarp(); bulk_add_if"),
}  # fmt: skip


@needs_gxx
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(cache, mistake):
    if on_cpu.shown_before(__file__, MISTAKES[mistake]):
        return

    def attempt(timing, seed, edit):
        problem = Packed(4, (100, 60, 40), seed % 2 == 0, group=2)
        return problem.run(cache, timing, seed, edit=edit)

    on_cpu.some_order_shows(on_cpu.changed_by(*MISTAKES[mistake]), attempt, WHOLE)
