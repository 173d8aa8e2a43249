"""cuda_hopper_backward_deterministic: its kernels' own source on a CPU against float64, the order of its sums, its host side."""

import ctypes
import importlib.util
import re
import sys

import numpy as np
import pytest
import yaml

import hopper_on_cpu as on_cpu  # isort: skip

FOLDER = on_cpu.FOLDER.with_name("cuda_hopper_backward_deterministic")
FILES = {64: "kernels/three.cu", 128: "kernels/backward.cu", 256: "kernels/wide.cu"}
KV_ROWS = {64: 192, 128: 128, 256: 64}
SMEM_LIMIT_BYTES = 227 << 10
WHOLE, WHOLE_BF16 = 6e-4, 5e-3  # fp16 of P and dS gives 3.7e-4; a lost element of a tile gives more
ROUNDED_ONCE = 3.4e-4  # dq and dk where dS is rounded to fp16, and nothing before it
RISING, LAST_FALLS, FALLING = 9, 1, 0  # from which section on blocks start with the longest
needs_gxx = pytest.mark.skipif(not on_cpu.have_compiler(), reason="g++ is not on PATH")


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


class Ordered(on_cpu.Problem):
    """A case whose kv blocks add to dq in the order of `section` and `falling_from`.

    Blocks run one after another, in the order of their index: who waits for a turn that only a later block gives is told.
    """

    def run(self, cache, section=1, falling_from=0, timing=on_cpu.RANDOM, seed=0, edit=None):
        flags = ("-DORDERED=1", *(("-DBF16=1",) if self.bf16 else ()))
        library = on_cpu.compile_kernel(
            FILES[self.headdim], self.headdim, flags, cache, edit, FOLDER
        )
        passes = on_cpu.compile_kernel(
            "kernels/passes.cu", self.headdim, flags, cache, None, FOLDER
        )
        self.turns = on_cpu.aligned(
            (self.heads, self.tiles), np.uint32, 0 if self.headdim == 64 else 77
        )
        self.order = Order(self.turns.ctypes.data, self.heads, section, falling_from)
        self.how = (timing, seed)
        kinds = {64: self._three, 128: self._fused, 256: self._wide}
        kinds[self.headdim](library, passes, section)
        return self.errors()

    def counts(self):
        """How many blocks have added to each tile of each head: [heads, tiles]."""
        return self.turns

    def _before(self, passes, turns):
        inputs = map(on_cpu._pointer, (self.o, self.d_o, self.lse, self.stats))
        on_cpu._call(passes.run_preprocess, *inputs, turns, self.seqlen, self.heads * self.tiles, *self.how)  # fmt: skip

    def _blocks(self, rows):
        return self.heads * -(-self.seqlen // rows)

    def _fused(self, library, passes, _section):
        self._before(passes, on_cpu._pointer(self.turns))
        pointers = (x.ctypes.data for x in (self.stats, self.dq_sum, self.dk, self.dv))
        scales = (x.value for x in self.scales())
        params = Params(*pointers, self.order, self.seqlen, int(self.causal), *scales)
        how = (self._blocks(128), 384, *self.how)
        on_cpu._call(library.run_backward, self.maps(128), ctypes.byref(params), *how)
        self.postprocess(passes, *self.how)

    def _three(self, library, _passes, section):
        widths = [min(section, self.heads - first) for first in range(0, self.heads, section)]
        done = on_cpu.aligned((len(widths) + 1,), np.uint32, 0)
        arrays = self.o, self.d_o, self.lse, self.stats, self.dq_sum, self.dq, done
        scales = self.scale, self.log2_scale()
        passes = Passes(*(x.ctypes.data for x in arrays), self.order, self.seqlen, *scales)
        params = ThreeParams(passes, self.dk.ctypes.data, self.dv.ctypes.data, int(self.causal))
        passes_blocks = sum(-(-2 * wide * self.tiles // 16) for wide in widths[:2])
        blocks = passes_blocks + 2  # the first of two takes all items, the second finds none
        on_cpu._call(
            library.run_backward, self.maps(192), ctypes.byref(params), blocks, 512, *self.how
        )

    def _wide(self, library, passes, _section):
        """dS of all kv tiles of the first heads but one, then of the last head's first and of the rest."""
        self._before(passes, None)
        scale, log2_scale = self.scales()
        sizes, out = (
            (self.seqlen, int(self.causal), scale),
            (on_cpu._pointer(self.dk), on_cpu._pointer(self.dv)),
        )
        ds = on_cpu.aligned((self.heads * self.tiles**2, 64, 64), self.q.dtype)
        sums = on_cpu.aligned((self.tiles, 64, 256), np.float32, np.nan)
        last, tiles = self.heads - 1, self.tiles
        for head, heads, kv_tile, end in (
            (0, last, 0, tiles),
            (last, 1, 0, 1),
            (last, 1, 1, tiles),
        ):
            if heads * (end - kv_tile) == 0:
                continue
            ds[...] = 0x7FC0 if self.bf16 else np.nan
            part = ctypes.byref(on_cpu.Part(head, kv_tile, end - kv_tile))
            how = (on_cpu._pointer(ds), part, heads * (end - kv_tile), *self.how)
            on_cpu._call(library.run_dkdv, self.maps(64), on_cpu._pointer(self.stats), *out, *sizes, log2_scale, *how)  # fmt: skip
            sources = map(on_cpu._pointer, (ds, sums, self.dq))
            how = (part, heads * -(-self.seqlen // 128), *self.how)
            on_cpu._call(library.run_dq, self.maps(64), *sources, *sizes, *how)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("on_cpu")


@needs_gxx
@pytest.mark.parametrize("headdim", FILES)
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal", "falling_from", "timing"),
    [(3, 17, False, RISING, on_cpu.RANDOM), (2, 1, True, FALLING, on_cpu.LATE), (1, 64, True, RISING, on_cpu.EARLY),
     (3, 129, True, LAST_FALLS, on_cpu.RANDOM), (1, 513, True, RISING, on_cpu.RANDOM),
     (1, 450, True, FALLING, on_cpu.RANDOM), (2, 330, False, RISING, on_cpu.LATE)],
)  # fmt: skip
def test_gradients(cache, headdim, heads, seqlen, causal, falling_from, timing):
    problem = Ordered(heads, seqlen, headdim, causal)
    errors = problem.run(cache, 2, falling_from, timing, seed=seqlen)
    if seqlen == 1:  # dq and dk are zero but for the rounding of delta
        assert max(abs(problem.dq).max(), abs(problem.dk).max()) < 1e-4
        errors = {"dv": errors["dv"]}
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", FILES)
@pytest.mark.parametrize(("seqlen", "causal"), [(333, True), (193, False)])
def test_ds_is_made_of_p_in_32_bits(cache, headdim, seqlen, causal):
    """dS rounded once, as FlashAttention-3 rounds it; made of P in 16 bits it is twice, and dq or dk 3.6e-4 off."""
    errors = Ordered(2, seqlen, headdim, causal).run(cache, 1, RISING, on_cpu.EARLY)
    assert max(errors["dq"], errors["dk"]) < ROUNDED_ONCE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", FILES)
def test_bf16(cache, headdim):
    problem = Ordered(2, 150, headdim, True, bf16=True)
    assert 2 * WHOLE < max(problem.run(cache).values()) < WHOLE_BF16


@needs_gxx
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("falling_from", [RISING, LAST_FALLS, FALLING])
def test_every_block_adds_to_every_tile_it_sees_once(cache, headdim, causal, falling_from):
    problem = Ordered(3, 450, headdim, causal)
    problem.run(cache, 2, falling_from, on_cpu.EARLY)
    rows, last = KV_ROWS[headdim], 450 // KV_ROWS[headdim]
    blocks = [tile * 64 // rows + 1 if causal else last + 1 for tile in range(problem.tiles)]
    assert {tuple(head) for head in problem.counts().tolist()} == {tuple(blocks)}


# Each takes one thing away that the kernel needs; some order of events, or of blocks, must show it.
MISTAKES = {
    "dQ written over before it was read": (128, r"mbar_wait\(dq_empty[^;]*;", ""),
    "dQ is not fenced": (128, r"proxy_fence\(\);\s*__syncwarp\(\);\s*mbar_arrive_if\(dq_full", "mbar_arrive_if(dq_full"),
    "dS over one in use": (128, r"mbar_wait\(ds_full[^;]*;", ""),
    "P is packed while dK reads dS": (128, r"wgmma_wait<0>\(\);\s*touch\(dk\);", "touch(dk);"),
    "a tile is loaded into a slot in use": (64, r"if \(i >= STAGES\)", "if (0)"),
    "the last block forgets the others' sums": (64, r"if \(rank > 0\)", "if (0)"),
    "the first block adds to what lies there": (64, r"else if \(rank == 0\)", "else if (0)"),
    "nobody passes a turn on": (64, r"counter_add_if\(counts, 1, lane0\);", ""),
    "blocks wait for blocks that start later": (128, r"walk_of<M, N>\([^;]*wide, ", r"\g<0>kv_blocks - 1 - "),
}  # fmt: skip


@needs_gxx
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(cache, mistake):
    headdim, *change = MISTAKES[mistake]
    if on_cpu.shown_before(__file__, MISTAKES[mistake], FOLDER):
        return

    def attempt(timing, seed, edit):
        problem = Ordered(1, 450, headdim, True)
        return problem.run(cache, 2, RISING, timing, seed, edit=edit)

    on_cpu.some_order_shows(on_cpu.changed_by(*change), attempt, WHOLE)


# --------------------------------------------------------------------------- host side
@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("cuda.bindings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOARD_CACHE", str(tmp_path_factory.mktemp("cubins")))
        spec = importlib.util.spec_from_file_location("deterministic", FOLDER / "submission.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "deterministic", module)
        spec.loader.exec_module(module)
        yield module


def test_every_claimed_headdim_has_the_file_that_runs_here(submission):
    claims = yaml.safe_load((FOLDER / "manifest.yaml").read_text())["claims"]
    assert {*claims["headdims"]} == {*FILES}
    assert (submission.FILES, submission.KV_ROWS) == (FILES, KV_ROWS)


@pytest.mark.parametrize(("headdim", "name"), [(64, "three_smem_bytes"), (128, "fused_smem_bytes")])
def test_shared_memory_is_what_the_files_promise(submission, headdim, name):
    wanted = getattr(submission, name)()
    promised = re.findall(r"promise: smem_bytes=(\d+)", (FOLDER / FILES[headdim]).read_text())  # fmt: skip
    assert {int(x) for x in promised} == {wanted}
    assert wanted <= SMEM_LIMIT_BYTES


@pytest.mark.parametrize(("headdim", "heads", "section"), [(64, 5, 2), (128, 5, 2), (64, 1, 1)])
def test_the_last_section_falls_where_rows_are_hidden_from_each_other(
    submission, monkeypatch, headdim, heads, section
):
    import torch

    monkeypatch.setattr(submission, "_tensor_map", lambda *_: None)
    monkeypatch.setattr(submission, "_function", lambda *_, **__: None)
    monkeypatch.setattr(submission, "_Launch", lambda *_: None)
    monkeypatch.setattr(submission, "_multiprocessors", lambda _: 132)
    q = torch.empty(1, heads, 256, headdim, dtype=torch.float16)
    walk = submission.Walk(section * 8 * 256 * headdim, falling=1)
    plan = submission.Plan(q, q, q, q, q, True, 1.0, walk)
    assert (plan.section, plan.falling_from) == (section, -(-heads // section) - 1)
    assert [submission.walk_for(headdim, causal).falling for causal in (True, False)] == [1, 0]


def test_a_tensor_that_does_not_fit_is_refused(submission):
    import torch

    x = torch.empty(1, 1, 8, 64, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match="runs on a Hopper GPU"):
        submission._check(x, x, x, x, x[..., 0].float(), x)
