"""cuda_hopper_backward_deterministic: its kernels' own source on a CPU against float64, the order of its sums, its host side."""

import importlib.util
import re
import sys

import numpy as np
import pytest
import yaml

import hopper_on_cpu as on_cpu  # isort: skip
from hopper_on_cpu import ordered  # isort: skip

FOLDER = ordered.FOLDER
SMEM_LIMIT_BYTES = 227 << 10
WHOLE, WHOLE_BF16 = 6e-4, 5e-3  # fp16 of P and dS gives 3.7e-4; a lost element of a tile gives more
ROUNDED_ONCE = 3.4e-4  # dq and dk where dS is rounded to fp16, and nothing before it
RISING, LAST_FALLS, FALLING = 9, 1, 0  # from which section on blocks start with the longest
needs_gxx = pytest.mark.skipif(not on_cpu.have_compiler(), reason="g++ is not on PATH")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("on_cpu")


@needs_gxx
@pytest.mark.parametrize("headdim", ordered.FILES)
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal", "falling_from", "timing"),
    [(3, 17, False, RISING, on_cpu.RANDOM), (2, 1, True, FALLING, on_cpu.LATE), (1, 64, True, RISING, on_cpu.EARLY),
     (3, 129, True, LAST_FALLS, on_cpu.RANDOM), (1, 513, True, RISING, on_cpu.RANDOM),
     (1, 450, True, FALLING, on_cpu.RANDOM), (2, 330, False, RISING, on_cpu.LATE)],
)  # fmt: skip
def test_gradients(cache, headdim, heads, seqlen, causal, falling_from, timing):
    problem = ordered.Ordered(heads, seqlen, headdim, causal)
    errors = problem.run(cache, 2, falling_from, timing, seed=seqlen)
    if seqlen == 1:  # dq and dk are zero but for the rounding of delta
        assert max(abs(problem.dq).max(), abs(problem.dk).max()) < 1e-4
        errors = {"dv": errors["dv"]}
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", ordered.FILES)
@pytest.mark.parametrize(("seqlen", "causal"), [(333, True), (193, False)])
def test_ds_is_made_of_p_in_32_bits(cache, headdim, seqlen, causal):
    """dS rounded once, as FlashAttention-3 rounds it; made of P in 16 bits it is twice, and dq or dk 3.6e-4 off."""
    errors = ordered.Ordered(2, seqlen, headdim, causal).run(cache, 1, RISING, on_cpu.EARLY)
    assert max(errors["dq"], errors["dk"]) < ROUNDED_ONCE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", ordered.FILES)
def test_bf16(cache, headdim):
    problem = ordered.Ordered(2, 150, headdim, True, bf16=True)
    assert 2 * WHOLE < max(problem.run(cache).values()) < WHOLE_BF16


@needs_gxx
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("falling_from", [RISING, LAST_FALLS, FALLING])
def test_every_block_adds_to_every_tile_it_sees_once(cache, headdim, causal, falling_from):
    problem = ordered.Ordered(3, 450, headdim, causal)
    problem.run(cache, 2, falling_from, on_cpu.EARLY)
    rows, last = ordered.KV_ROWS[headdim], 450 // ordered.KV_ROWS[headdim]
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
    headdim, old, new = MISTAKES[mistake]

    def edit(source):
        source, changed = re.subn(old, new, source)
        assert changed
        return source

    try:
        for timing, seed in [(on_cpu.LATE, 0), *((on_cpu.RANDOM, n) for n in range(4))]:
            problem = ordered.Ordered(1, 450, headdim, True)
            errors = problem.run(cache, 2, RISING, timing, seed, edit=edit)
            if max(np.nan_to_num(list(errors.values()), nan=1e9)) > WHOLE:
                return
    except on_cpu.KernelFailed:
        return
    pytest.fail("all orders of events gave right gradients")


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
    assert {*claims["headdims"]} == {*ordered.FILES}
    assert (submission.FILES, submission.KV_ROWS) == (ordered.FILES, ordered.KV_ROWS)


@pytest.mark.parametrize(("headdim", "name"), [(64, "three_smem_bytes"), (128, "fused_smem_bytes")])
def test_shared_memory_is_what_the_files_promise(submission, headdim, name):
    wanted = getattr(submission, name)()
    promised = re.findall(r"promise: smem_bytes=(\d+)", (FOLDER / ordered.FILES[headdim]).read_text())  # fmt: skip
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
