"""cuda_hopper_backward: its kernels' own source on a CPU against float64, its compilation, its host side."""

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import hopper_on_cpu as on_cpu  # isort: skip
from hopper_on_cpu.forward import Case, Forward  # isort: skip

ROOT = Path(__file__).resolve().parents[2]
FOLDER = on_cpu.FOLDER
SMEM_LIMIT_BYTES = 227 << 10
WHOLE = 6e-4  # fp16 of P and dS gives 3.7e-4; a lost element of a tile gives more
WHOLE_BF16 = 5e-3
ROUNDED_ONCE = 3.4e-4  # dq and dk where dS is rounded to fp16, and nothing before it
GENERAL, BF16, STORED = "-DGENERAL=1", "-DBF16=1", "-DSTORED=1"
CHOSEN = {  # headdim -> what is launched
    64: ("kernels/three.cu", ()),
    128: ("kernels/backward.cu", ()),
    256: ("kernels/wide.cu", ()),
}
needs_gxx = pytest.mark.skipif(not on_cpu.have_compiler(), reason="g++ is not on PATH")
FUSED = {"three-64": ("kernels/three.cu", 64, ()), "ahead-128": ("kernels/backward.cu", 128, ())}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """compile(file, headdim, flags, edit) -> library, each kept for the whole file."""
    cache = tmp_path_factory.mktemp("on_cpu")
    return lambda *args, edit=None: on_cpu.compile_kernel(*args, cache, edit)


def gradients(
    libraries,
    file,
    headdim,
    flags,
    problem,
    timing,
    seed,
    section=1,
    edit=None,
    in_pieces=0,
    stay=None,
):
    """All launches of a call; the errors of dq, dk, dv."""
    passes = libraries("kernels/passes.cu", headdim, flags)
    once = ("-DONCE=1",) if headdim == 64 and stay is None else ()
    library = libraries(file, headdim, (*flags, *once), edit=edit)
    if headdim == 64:
        problem.three(library, section, timing, seed, stay)
    if headdim == 128:
        problem.fused(passes, library, section, timing, seed, in_pieces=in_pieces)
    if headdim == 256:
        problem.preprocess(passes, on_cpu.EARLY)
        problem.wide(library, timing, seed)
    problem.sum_group(passes)
    return problem.errors()


# ------------------------------------------------------- the kernels' source, run on a CPU
@needs_gxx
@pytest.mark.parametrize(("file", "headdim", "flags"), FUSED.values(), ids=FUSED)
@pytest.mark.parametrize(("timing", "causal"), [(on_cpu.LATE, True), (on_cpu.RANDOM, False)])
def test_fused_gradients(libraries, file, headdim, flags, timing, causal):
    """Two or three kv blocks, the last one ragged, whatever the hardware does first."""
    problem = on_cpu.Problem(1, 330, headdim, causal)
    errors = gradients(libraries, file, headdim, flags, problem, timing, seed=headdim)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal"),
    [(3, 17, False), (1, 64, True), (3, 127, False), (2, 129, False), (2, 129, True), (1, 193, True),
     (1, 333, True), (1, 513, True)],
)  # fmt: skip
def test_what_is_launched_at_lengths_off_the_tile(libraries, headdim, heads, seqlen, causal):
    """The lengths of the harness's probes, with and without causality, several heads."""
    file, flags = CHOSEN[headdim]
    problem = on_cpu.Problem(heads, seqlen, headdim, causal)
    how = (on_cpu.RANDOM, seqlen)
    errors = gradients(libraries, file, headdim, flags, problem, *how, section=2)
    assert max(errors.values()) < WHOLE, errors


AXES = {  # what GENERAL takes: (heads of q, rows of q, causal), the rest by name
    "more keys than queries, grouped, two batches, rows first": (
        (4, 130, True), {"seqlen_k": 330, "group": 2, "batch": 2, "rows_first": True}),
    "two batches, rows first": ((4, 130, True), {"batch": 2, "rows_first": True}),
    "fewer keys than queries, off the diagonal": ((2, 130, False), {"seqlen_k": 70}),
    "one query, many keys": ((2, 1, True), {"seqlen_k": 200, "group": 2}),
    "one head of k and v for all": ((4, 200, True), {"group": 4}),
}  # fmt: skip


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
@pytest.mark.parametrize(("seqlen", "causal"), [(333, True), (193, False)])
def test_ds_is_made_of_p_in_32_bits(libraries, headdim, seqlen, causal):
    """dS rounded once, as FlashAttention-3 rounds it; made of P in 16 bits it is twice, and dq or dk 3.6e-4 off."""
    file, flags = CHOSEN[headdim]
    problem = on_cpu.Problem(2, seqlen, headdim, causal)
    errors = gradients(libraries, file, headdim, flags, problem, on_cpu.EARLY, 3)
    assert max(errors["dq"], errors["dk"]) < ROUNDED_ONCE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
@pytest.mark.parametrize("axes", AXES)
def test_grouped_heads_unequal_lengths_and_strides(libraries, headdim, axes):
    shape, more = AXES[axes]
    file, flags = CHOSEN[headdim]
    problem = on_cpu.Problem(shape[0], shape[1], headdim, shape[2], **more)
    how = (problem, on_cpu.RANDOM, 3)
    errors = gradients(libraries, file, headdim, (*flags, GENERAL), *how, section=2)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
def test_bf16(libraries, headdim):
    file, flags = CHOSEN[headdim]
    problem = on_cpu.Problem(2, 150, headdim, True, bf16=True, group=2)
    flags = (*flags, GENERAL, BF16)
    errors = gradients(libraries, file, headdim, flags, problem, on_cpu.RANDOM, 1)
    assert 2 * WHOLE < max(errors.values()) < WHOLE_BF16, errors


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
def test_one_row(libraries, headdim):
    """S = 1: dv = do, and dq and dk are zero but for the rounding of delta."""
    file, flags = CHOSEN[headdim]
    problem = on_cpu.Problem(2, 1, headdim, True)
    errors = gradients(libraries, file, headdim, flags, problem, on_cpu.LATE, 0)
    assert errors["dv"] < WHOLE
    assert max(abs(problem.dq).max(), abs(problem.dk).max()) < 1e-4


@needs_gxx
@pytest.mark.parametrize("timing", [on_cpu.EARLY, on_cpu.LATE, on_cpu.RANDOM])
@pytest.mark.parametrize(("seqlen", "causal"), [(17, False), (330, True)])
def test_blocks_of_headdim_64_that_stay(libraries, timing, seqlen, causal):
    """One takes all of ten kv blocks and more, of items with one tile and with several; the other finds nothing left."""
    problem = on_cpu.Problem(11, seqlen, 64, causal)
    how = (problem, timing, 3)
    errors = gradients(libraries, *FUSED["three-64"], *how, section=2, stay=2)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("scale", [0.0, -0.2, 1e-4])
def test_scales_and_ragged_sections_of_heads(libraries, scale):
    problem = on_cpu.Problem(3, 130, 64, True, scale)
    errors = gradients(libraries, *FUSED["three-64"], problem, on_cpu.EARLY, seed=0, section=2)
    if scale == 0:
        assert not problem.dq.any()
        assert not problem.dk.any()
        errors = {"dv": errors["dv"]}
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize(
    ("timing", "seqlen", "causal"),
    [(on_cpu.LATE, 330, True), (on_cpu.RANDOM, 290, False), (on_cpu.RANDOM, 40, True)],
)
def test_wide(libraries, timing, seqlen, causal):
    """Odd and even numbers of tiles, the last one ragged; one block of dq has a second half without rows."""
    problem = on_cpu.Problem(1, seqlen, 256, causal)
    errors = gradients(libraries, "kernels/wide.cu", 256, (), problem, timing, seqlen)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal", "flags", "most_tiles", "count"),
    [(3, 200, True, (), 20, 2), (2, 330, True, (), 6, 8), (1, 330, False, (), 13, 3), (1, 200, True, (GENERAL,), 4, 4)],
)  # fmt: skip
def test_ds_of_some_heads_or_kv_tiles_at_a_time(
    libraries, submission, heads, seqlen, causal, flags, most_tiles, count
):
    """What is in memory of dS is of whole heads, or of kv tiles of one, whose shares of dq are summed in fp32."""
    problem = on_cpu.Problem(heads, seqlen, 256, causal)
    packed = causal and GENERAL not in flags
    tiles = problem.tiles
    parts = submission.ds_parts(heads, tiles, tiles, packed, 8192 * most_tiles)
    assert len(parts) == count
    problem.preprocess(libraries("kernels/passes.cu", 256, flags), on_cpu.EARLY)
    problem.wide(libraries("kernels/wide.cu", 256, flags), on_cpu.RANDOM, seqlen, parts)
    assert max(problem.errors().values()) < WHOLE, problem.errors()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("heads", "tiles", "most_tiles"), [(8, 256, 163840), (5, 7, 60), (3, 9, 20), (2, 6, 1)]
)
def test_parts_of_ds_take_each_kv_tile_once(submission, heads, tiles, most_tiles, packed):
    """None takes more than is allowed, but a kv tile that does alone."""
    parts = submission.ds_parts(heads, tiles, tiles, packed, 8192 * most_tiles + 1)
    taken = [
        (h, j)
        for part in parts
        for h in range(part.head, part.head + part.heads)
        for j in range(part.kv_tile, part.kv_tile + part.kv_tiles)
    ]
    assert taken == [(h, j) for h in range(heads) for j in range(tiles)]
    for part in parts:
        of_head = range(part.kv_tile, part.kv_tile + part.kv_tiles)
        assert part.ds_tiles == part.heads * sum(tiles - j if packed else tiles for j in of_head)
        assert part.ds_tiles <= most_tiles or (part.heads, part.kv_tiles) == (1, 1)


@needs_gxx
@pytest.mark.parametrize(
    ("heads", "seqlen", "seqlen_k", "section"),
    [(5, 330, 330, 2), (1, 1, 1, 1), (7, 64, 600, 3), (3, 200, 200, 3), (12, 130, 130, 1)],
)
def test_every_item_of_a_grid_runs_once_and_after_what_it_waits_for(
    libraries, submission, heads, seqlen, seqlen_k, section
):
    """Sections are preprocessed by first blocks or by main blocks two sections before, in any case earlier."""
    library = libraries("kernels/three.cu", 64, ())
    blocks, sections = submission.three_blocks(heads, seqlen, seqlen_k, section)
    items = np.full((blocks, 4), -1, np.int32)
    tiles, kv_blocks = -(-seqlen // 64), -(-seqlen_k // 192)
    library.list_items(heads, section, tiles, kv_blocks, blocks, on_cpu._pointer(items))
    first, main, last = range(3)
    widths = [min(section, heads - n * section) for n in range(sections)]

    def indices(kind, number):
        return [item[3] for item in items if tuple(item[:2]) == (kind, number)]

    for number, wide in enumerate(widths):
        assert indices(main, number) == list(range(wide * kv_blocks))
        passes = list(range(-(-2 * wide * tiles // 16)))
        assert indices(first, number) == (passes if number < 2 else [])
        assert indices(last, number) == (passes if number >= sections - 2 else [])
    assert all(items[:, 2] == [widths[n] for n in items[:, 1]])
    order = [tuple(item[:2]) for item in items]
    assert order == sorted(order)


# Each takes one thing away that the kernel needs; some order of events must show it.
MISTAKES = {
    "dS over one in use": ("ahead-128", "      mbar_wait(through + 8 * before, before_parity);  ", ""),
    "dS is not fenced before others read it": ("ahead-128", "store_ds(ds_tile); proxy_fence();", "store_ds(ds_tile);"),
    "q and do are loaded into slots in use": ("ahead-128", "mbar_wait(through + 8 * next, next_parity);  ", ""),
    "dQ written over before it was read": ("ahead-128", "    else bulk_wait_read();\n", ""),
    "nobody waits for dS": ("three-64", "mbar_wait(ds_full + 8 * before, ds_parity);  ", ""),
    "a tile is loaded into a slot in use, by the spare warp": ("three-64", "if (i >= STAGES) mbar_wait", "if (0) mbar_wait"),
    "two buffers of dS": ("three-64", "DS_BUFFERS = 3;", "DS_BUFFERS = 2;"),
    "dS is not fenced": ("three-64", "proxy_fence(); __syncwarp(); mbar_arrive_if(ds", "mbar_arrive_if(ds"),
    "nobody waits for the sums to be preprocessed": ("three-64", "pass.preprocess_share(item.section, ", "0, (item.section, "),
}  # fmt: skip


# Of blocks that take one item after the other, here all of a grid by one, and of kv blocks in pieces
ITEM_MISTAKES = {
    "k of the next item over one in use": ("mbar_wait(k_empty, kv_parity);\n            mbar_expect", "mbar_expect"),
    "v of the next item over one in use": ("mbar_wait(v_empty, kv_parity);", ""),
    "parities of k and v stay": ("mbar_wait(v_full, kv_parity); kv_parity ^= 1;", "mbar_wait(v_full, kv_parity);"),
    "one record of items": ("RECORDS = 4,", "RECORDS = 1,"),
    "the first piece stores": ("== PIECES - 1;", "== 0;"),
    "each piece has all tiles": ("end = from + all * (piece + 1) / pieces;", "end = tiles;"),
}  # fmt: skip


# Of blocks of headdim 64 that stay, here two for all of a grid
STAY_MISTAKES = {
    "k and v of the next item over those in use": ("if (n) mbar_wait(kv_empty, (n - 1) & 1);", ""),
    "parities of k and v stay": ("mbar_wait(k_full, n & 1); mbar_wait(v_full, n & 1);", "mbar_wait(k_full, 0); mbar_wait(v_full, 0);"),
    "items are not counted": ("if (n) counter_add_fenced_if(through, 1, lane0);", ""),
}  # fmt: skip


# Of passes that spare warps of headdim 128 do for other heads
SPARE_MISTAKES = {
    "sums are added to before they are zero": ("counter_wait(p.spare.ready + section, ", "0, (p.spare.ready + section, "),
    "dq is made of sums that are not complete": ("counter_add_fenced_if(done, 1,", "counter_add_fenced_if(done, 8,"),
    "items are not counted": ("counter_add_fenced_if(done, 1, lane0 && done);", ""),
}  # fmt: skip


# Of sums of dq of headdim 128 that nobody clears
STORED_MISTAKES = {
    "items go from the first kv rows to the last": ("kv_blocks - 1 - place : place", "place : place"),
    "all blocks add": ("lane0 && stores && i < OWN", "0"),
    "who stores stores too much": ("stores && i < OWN", "stores && i <= OWN"),
    "short items tell of nothing": ("<= OWN) own_are_stored();", "< 0) own_are_stored();"),
    "one barrier for all items": ("own_stored + 8 * (kv_parity ^ 1)", "own_stored"),
    "k is loaded whoever is behind": ("WARPS + (STORED ? 2 : 0)", "WARPS + (STORED ? 1 : 0)"),
}  # fmt: skip


WIDE_MISTAKES = {
    "P is taken before it is there": ("mbar_wait(p_full + 8 * (i & 1), i >> 1 & 1);", ""),
    "q and do are loaded into slots in use": ("mbar_wait(empty + 8 * slot, (i >> 1 & 1) ^ 1);", ""),
    "P is made of scores that are not there": ("wgmma_wait<1>(); touch(s); arrive(q_empty", "touch(s); arrive(q_empty"),
    "k and dS are loaded into a stage in use": ("mbar_wait(empty + 8 * slot, (i / STAGES & 1) ^ 1);", ""),
    "dq takes rows in their own order": ("(lane >> 3) * 8 + (warp & 1) * 4 +", "(warp & 1) * 8 + (lane >> 3) * 2 +"),
}  # fmt: skip


_right = set()  # what showed nothing where there was no mistake


def shows(old, new, attempt):
    """Fail unless some order of events shows that `old` has become `new`."""
    if on_cpu.shown_before(__file__, (old, new)):
        return
    if attempt.__code__ not in _right:  # once for all mistakes of a test
        assert max(attempt(on_cpu.RANDOM, 0, None).values()) < WHOLE
        _right.add(attempt.__code__)

    def edit(source):
        assert old in source
        return source.replace(old, new)

    on_cpu.some_order_shows(edit, attempt, WHOLE)


@needs_gxx
@pytest.mark.parametrize("mistake", STAY_MISTAKES)
def test_a_mistake_of_blocks_that_stay_shows(libraries, mistake):
    old, new = STAY_MISTAKES[mistake]

    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(11, 130, 64, False)
        how = (problem, timing, seed)
        return gradients(libraries, *FUSED["three-64"], *how, section=2, edit=edit, stay=2)

    shows(old, new, attempt)


@needs_gxx
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(libraries, mistake):
    build, *change = MISTAKES[mistake]

    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(1, 330, FUSED[build][1], True)
        return gradients(libraries, *FUSED[build], problem, timing, seed, edit=edit)

    shows(*change, attempt)


@needs_gxx
@pytest.mark.parametrize("in_pieces", [1, 3, 6])
def test_pieces_of_kv_blocks(libraries, in_pieces):
    """Of 330 query rows three tiles each; without causality, as they are launched."""
    problem = on_cpu.Problem(2, 330, 128, False)
    how = (problem, on_cpu.RANDOM, in_pieces)
    errors = gradients(libraries, *FUSED["ahead-128"], *how, section=2, in_pieces=in_pieces)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("mistake", ITEM_MISTAKES)
def test_a_mistake_between_items_shows(libraries, mistake):
    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(3, 200, 128, False)
        how = (problem, timing, seed)
        return gradients(libraries, *FUSED["ahead-128"], *how, edit=edit, in_pieces=2)

    shows(*ITEM_MISTAKES[mistake], attempt)


@needs_gxx
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal", "section", "in_pieces", "lead", "lag", "timing"),
    [(5, 130, True, 1, 0, 2, 1, on_cpu.RANDOM), (4, 200, False, 1, 3, 1, 1, on_cpu.LATE),
     (7, 17, True, 2, 0, 1, 1, on_cpu.RANDOM), (6, 130, False, 1, 9, 2, 2, on_cpu.EARLY),
     (5, 100, True, 2, 0, 5, 9, on_cpu.RANDOM)],
)  # fmt: skip
def test_spare_warps_do_the_passes_of_other_heads(
    libraries, heads, seqlen, causal, section, in_pieces, lead, lag, timing
):
    """Sections of heads behind and ahead of those that the block computes, the last of them narrower."""
    problem = on_cpu.Problem(heads, seqlen, 128, causal)
    passes, library = libraries("kernels/passes.cu", 128, ()), libraries("kernels/backward.cu", 128, ())  # fmt: skip
    problem.fused(passes, library, section, timing, 1, 1, in_pieces, lead, lag)
    assert max(problem.errors().values()) < WHOLE, problem.errors()


@needs_gxx
@pytest.mark.parametrize("mistake", SPARE_MISTAKES)
def test_a_mistake_of_spare_warps_shows(libraries, mistake):
    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(5, 130, 128, True)
        passes = libraries("kernels/passes.cu", 128, ())
        library = libraries("kernels/backward.cu", 128, (), edit=edit)
        problem.fused(passes, library, 1, timing, seed, 1, 0, 1, 0)
        return problem.errors()

    shows(*SPARE_MISTAKES[mistake], attempt)


def uncleared(libraries, problem, section, stored, timing, seed, flags=(), edit=None):
    """Errors where of the first `stored` sections of heads nobody clears the sums of dq."""
    passes = libraries("kernels/passes.cu", 128, flags)
    library = libraries("kernels/backward.cu", 128, (STORED, *flags), edit=edit)
    problem.fused(passes, library, section, timing, seed, stored=stored)
    return problem.errors()


@needs_gxx
@pytest.mark.parametrize(
    ("heads", "seqlen", "section", "stored", "timing"),
    [(2, 17, 1, 2, on_cpu.EARLY), (3, 129, 1, 3, on_cpu.LATE), (3, 193, 2, 2, on_cpu.RANDOM),
     (2, 333, 1, 2, on_cpu.LATE), (3, 400, 2, 1, on_cpu.RANDOM), (2, 640, 2, 1, on_cpu.EARLY)],
)  # fmt: skip
def test_sums_that_nobody_clears(libraries, heads, seqlen, section, stored, timing):
    """They hold NaN before; those of later sections of heads are cleared."""
    problem = on_cpu.Problem(heads, seqlen, 128, True)
    errors = uncleared(libraries, problem, section, stored, timing, seqlen)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
def test_sums_that_nobody_clears_in_bf16(libraries):
    problem = on_cpu.Problem(2, 300, 128, True, bf16=True)
    errors = uncleared(libraries, problem, 1, 2, on_cpu.RANDOM, 1, (BF16,))
    assert 2 * WHOLE < max(errors.values()) < WHOLE_BF16, errors


@needs_gxx
@pytest.mark.parametrize("mistake", STORED_MISTAKES)
def test_a_mistake_of_sums_that_nobody_clears_shows(libraries, mistake):
    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(2, 400, 128, True)
        return uncleared(libraries, problem, 1, 2, timing, seed, edit=edit)

    shows(*STORED_MISTAKES[mistake], attempt)


@pytest.mark.parametrize(
    ("blocks", "seqlen", "whole"), [(2048, 512, 1980), (132, 512, 132), (5, 65, 0), (5, 64, 5)]
)
def test_kv_blocks_of_the_last_wave_are_cut(submission, blocks, seqlen, whole):
    """Those that do not fill 132 multiprocessors; not below a tile of query rows a piece."""
    assert submission.whole_blocks(blocks, 132, seqlen) == whole


@needs_gxx
@pytest.mark.parametrize("mistake", WIDE_MISTAKES)
def test_a_mistake_in_wide_shows(libraries, mistake):
    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(1, 330, 256, False)
        return gradients(libraries, "kernels/wide.cu", 256, (), problem, timing, seed, edit=edit)

    shows(*WIDE_MISTAKES[mistake], attempt)


@needs_gxx
def test_the_forward_kernel_runs_on_the_same_twin(tmp_path):
    """What an H200 made of wgmma operands, swizzles, TMA and barriers is what the twin makes of them."""
    error, _ = Forward(tmp_path, headdim=128).errors(Case(300, causal=True))
    assert error < 4e-4


# ------------------------------------------------------------------------- compilation
# --------------------------------------------------------------------------- host side
@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("cuda.bindings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOARD_CACHE", str(tmp_path_factory.mktemp("cubins")))
        spec = importlib.util.spec_from_file_location("hopper_backward", FOLDER / "submission.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "hopper_backward", module)
        spec.loader.exec_module(module)
        yield module


def test_every_claimed_headdim_has_a_build(submission):
    claims = yaml.safe_load((FOLDER / "manifest.yaml").read_text())["claims"]
    assert sorted(claims["headdims"]) == sorted(submission.BUILDS)
    assert all((FOLDER / file).is_file() for file in submission.FILES.values())


def test_what_is_launched_is_what_the_tests_here_run(submission):
    builds = submission.BUILDS.items()
    assert {d: (submission.FILES[b.rung], b.flags) for d, b in builds} == CHOSEN
    for headdim, (file, flags) in CHOSEN.items():
        built = " ".join((f"// build: -DHEADDIM={headdim}", *flags))
        assert f"{built}\n" in (FOLDER / file).read_text()


def test_shared_memory_is_what_the_kernels_lay_out(submission):
    """The kernels' own constants, added up in the order of their addresses."""
    m, n = 64, 128
    k_v, q_do, ds = 2 * n * 128 * 2, (3 + 2) * m * 128 * 2, 2 * n * m * 2
    dq, stats, barriers = 8 * 32 * 32 * 4, (3 + 2) * m * 4, 2 * 3 + 2 + 4 + 3 + 2
    spare, records = 3 * 8 * (512 + 64), 4 * 32
    wanted = k_v + q_do + ds + dq + stats + spare + records + 8 * barriers + 8  # and a word
    assert submission.fused_smem_bytes() == wanted <= SMEM_LIMIT_BYTES
    promised = f"// promise: smem_bytes={wanted} "
    assert promised in (FOLDER / submission.FILES["ahead"]).read_text()
    rows = submission.KV_ROWS["three"]
    k_v, q_do, ds, passes = 2 * rows * 64 * 2, 8 * m * 64 * 2, 3 * rows * m * 2, 3 * 8192
    stats, records = 8 * m * 16 + 128, 8 * 16  # 128: halves
    wanted = k_v + q_do + ds + passes + stats + records + 8 * (8 + 2 + 3 + 1 + 16 + 16)
    assert submission.three_smem_bytes() == wanted <= SMEM_LIMIT_BYTES


CLASSES = [  # headdim, causal, rows -> MB of q, do and sums that are walked together, cuts, lead, once
    (64, True, 1, 16, 0, 0, 1), (64, True, 512, 16, 0, 0, 1), (64, True, 1024, 8, 0, 0, 1), (64, True, 1025, 16, 0, 0, 0),
    (64, False, 512, 8, 0, 0, 1), (64, False, 513, 16, 0, 0, 0), (64, False, 2048, 16, 0, 0, 0), (64, True, 2049, 32, 0, 0, 0),
    (64, False, 16384, 32, 0, 0, 0), (128, True, 1, 16, 0, 0, 0), (128, True, 1024, 16, 0, 0, 0),
    (128, True, 1025, 16, 0, 2, 0), (128, True, 8192, 16, 0, 2, 0), (128, True, 16384, 16, 0, 0, 0),
    (128, False, 512, 8, 0, 0, 0), (128, False, 513, 4, 0, 2, 0), (128, False, 4096, 4, 0, 2, 0),
    (128, False, 16384, 16, 1, 0, 0), (256, True, 1, 520, 0, 0, 0), (256, False, 16384, 520, 0, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("headdim", "causal", "seqlen", "megabytes", "cuts", "lead", "once"), CLASSES
)
def test_classes_of_shapes_choose_among_what_was_measured(
    submission, headdim, causal, seqlen, megabytes, cuts, lead, once
):
    file, flags = CHOSEN[headdim]
    build = submission.build_for(headdim, seqlen, causal)
    assert (submission.FILES[build.rung], build.flags) == (file, flags)
    short = (headdim, causal) == (128, True) and seqlen <= 1024
    cleared = 1 if short else submission.NEVER
    assert build[2:] == (megabytes << 20, cuts, lead, once, cleared)
    general = submission.build_for(headdim, seqlen, causal, general=True)
    assert general == build._replace(flags=(*flags, GENERAL))


@pytest.mark.parametrize(
    ("heads", "causal", "general", "stored"),
    [(79, True, False, 7), (10, True, False, 0), (79, False, False, 0), (79, True, True, 0)],
)
def test_sums_of_which_heads_are_not_cleared(
    submission, monkeypatch, heads, causal, general, stored
):
    """All but the last section's; all are where there is but one, and where keys are not like queries."""
    import torch

    face = type("Face", (), {"getPtr": lambda _: 0})
    monkeypatch.setattr(submission, "_tensor_map", lambda *_: face())
    monkeypatch.setattr(submission, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(submission, "_function", lambda name, *_, flags, **__: (name, flags))
    q = torch.zeros(1, heads, 600, 128, dtype=torch.float16)
    flags = (GENERAL,) if general else ()
    build = submission.Build("ahead", flags, 10 * 8 * 600 * 128, lead=1, cleared=1)
    plan = submission.Plan(q, q, q, q, q, causal, 0.1, build)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    space, _ = plan.point_at(q, torch.zeros(1, heads, 600), dq, dk, dv)
    before, main, after = plan.launches
    assert (STORED in main.function[1]) == bool(stored)
    assert plan.params.stored.sections == stored
    assert before.args[9].value == 10 * 10 * stored  # tiles whose sums are not cleared
    if stored:
        assert plan.params.spare.lead == 0
        assert (before.grid, after.grid) == (790, 790)
        words = space.data_ptr() + 4 * space.numel() - plan.params.stored.warps
        assert words == 4 * 79 * 5  # a word for each kv block


def test_a_plan_is_found_again_by_every_shape_and_dtype(submission, monkeypatch):
    """Memory given back and taken again has its old address and may be another tensor."""
    import torch

    made = []

    class Plan:
        def __init__(self, *_):
            made.append(self)

        def __call__(self, *_):
            pass

    monkeypatch.setattr(submission, "Plan", Plan)
    monkeypatch.setattr(submission, "_check", lambda *_: None)
    monkeypatch.setattr(submission, "_plans", {})
    monkeypatch.setattr(submission, "_bind_context", lambda _: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    q, k, v, o, do = (torch.zeros(1, 2, 16, 64, dtype=torch.float16) for _ in range(5))
    lse = torch.zeros(1, 2, 16)
    submission.custom_attention_backward(q, k, v, o, lse, do)
    submission.custom_attention_backward(q, k, v, o, lse, do)
    assert len(made) == 1
    for position, tensor in enumerate((k, v, o, lse, do), start=1):
        for other in (tensor.view(torch.bfloat16 if tensor is not lse else torch.int32),
                      tensor.view(2, 1, *tensor.shape[2:])):  # fmt: skip
            arguments = [q, k, v, o, lse, do]
            arguments[position] = other
            submission.custom_attention_backward(*arguments)
    assert len(made) == 1 + 2 * 5


@pytest.mark.parametrize(
    ("headdim", "group", "launches"),
    [(64, 1, ["clear", "backward"]), (64, 2, ["clear", "backward", "sum_group"]),
     (128, 1, ["preprocess", "backward", "postprocess"]),
     (128, 2, ["preprocess", "backward", "postprocess", "sum_group"]),
     (256, 2, ["preprocess", "dkdv", "dq", "sum_group"])],
)  # fmt: skip
def test_what_a_call_launches(submission, monkeypatch, headdim, group, launches):
    """Each pointer of a call is in the arguments; parts of dk and dv where heads share k and v."""
    import torch

    face = type("Face", (), {"getPtr": lambda _: 0})
    monkeypatch.setattr(submission, "_tensor_map", lambda *_: face())
    monkeypatch.setattr(submission, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(submission, "_function", lambda name, *_, flags, **__: (name, flags))
    q, k = (torch.zeros(2, 4 // n, 70, headdim, dtype=torch.bfloat16) for n in (1, group))
    plan = submission.Plan(
        q, k, k, q, q, True, 0.1, submission.build_for(headdim, 70, True, group > 1)
    )
    named = [x.function if hasattr(x, "function") else ("clear", ()) for x in plan.launches]
    assert [name for name, _flags in named] == launches
    assert all(BF16 in flags for name, flags in named if name != "clear")
    assert all((GENERAL in flags) == (group > 1) for name, flags in named if name != "clear")
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, k))
    space, parts = plan.point_at(q, torch.zeros(2, 4, 70), dq, dk, dv)
    assert plan.dq.value == dq.data_ptr()
    of_heads = (plan.each_dk.value, plan.each_dv.value)
    if group == 1:
        assert of_heads == (dk.data_ptr(), dv.data_ptr())
    else:
        half = 2 * 4 * 70 * headdim * 2
        assert of_heads == (parts.data_ptr(), parts.data_ptr() + half)
        assert parts.numel() * 2 == 2 * half
    assert space.data_ptr() == plan.stats.value


@pytest.mark.parametrize(("headdim", "group"), [(64, 1), (128, 1), (128, 2), (256, 2)])
def test_gradients_lie_as_their_inputs(submission, monkeypatch, headdim, group):
    """Of views of [batch, rows, heads, D] in that order; parts of dk and dv, and all of headdim 64, are contiguous."""
    import torch

    face = type("Face", (), {"getPtr": lambda _: 0})
    monkeypatch.setattr(submission, "_tensor_map", lambda *_: face())
    monkeypatch.setattr(submission, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(submission, "_function", lambda name, *_, **__: name)
    q, k = (torch.zeros(2, 70, 4 // n, headdim).half().transpose(1, 2) for n in (1, group))
    dq, dk = map(submission._gradient, (q, k))
    assert (dq.is_contiguous(), dq.stride() == q.stride()) == (headdim == 64, headdim != 64)
    plan = submission.Plan(q, k, k, q, q, True, 0.1, submission.build_for(headdim, 70, True, True))

    def of(at):
        return at.batch, at.head, at.row

    assert of(plan.dq_at) == dq.stride()[:3]
    assert [of(at) for at in plan.kv_at] == [dk.stride()[:3]] * 2
    dense = (4 * 70 * headdim, 70 * headdim, headdim)
    assert [of(at) for at in plan.each_at] == [dense if group > 1 else dk.stride()[:3]] * 2
    if headdim == 128:
        assert of(plan.params.dk_at) == of(plan.each_at[0])
        assert of(plan.launches[2].args[-1]) == of(plan.dq_at)
    if headdim == 256:
        dkdv, dq_launch = plan.launches[1:3]
        assert [of(at) for at in dkdv.args[-4:-2]] == [dense] * 2
        assert of(dq_launch.args[-2]) == of(plan.dq_at)


@pytest.mark.parametrize(("lead", "inside"), [(0, False), (2, True), (30, False)])
def test_heads_of_the_passes(submission, monkeypatch, lead, inside):
    """First and last sections of heads by launches of their own; all of them where too few are in between."""
    import torch

    face = type("Face", (), {"getPtr": lambda _: 0})
    monkeypatch.setattr(submission, "_tensor_map", lambda *_: face())
    monkeypatch.setattr(submission, "_multiprocessors", lambda _: 132)
    monkeypatch.setattr(submission, "_function", lambda name, *_, flags, **__: name)
    q = torch.zeros(1, 79, 600, 128, dtype=torch.float16)
    build = submission.Build("ahead", (), 2 * 8 * 600 * 128, lead=lead)
    plan = submission.Plan(q, q, q, q, q, True, 0.1, build)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    lse = torch.zeros(1, 79, 600)
    space, _ = plan.point_at(q, lse, dq, dk, dv)
    spare, tiles = plan.params.spare, 10
    assert (spare.lead, spare.lag) == (lead if inside else 0, 14)  # 132 items are 13.2 sections
    first = (40 - 14) * 2 if inside else 0
    grids = [x.grid for x in plan.launches]
    assert grids == [tiles * (2 * lead if inside else 79), 132, tiles * (79 - first)]
    sums, out = (x.value for x in plan.launches[2].args[:2])
    assert sums == plan.params.dq_sum + 4 * first * tiles * 64 * 128
    assert out == dq.data_ptr() + 2 * first * 600 * 128
    inputs = (spare.o, spare.d_o, spare.lse, spare.dq)
    assert inputs == (q.data_ptr(), q.data_ptr(), lse.data_ptr(), dq.data_ptr())
    words = (spare.queue, spare.ready, spare.done)
    assert words == tuple(plan.params.taken + 4 * n for n in (1, 2, 42))
    if inside:
        assert plan.params.taken + 4 * (2 + 2 * 40) == space.data_ptr() + 4 * space.numel()


def test_wide_s_shared_memory_is_what_the_kernels_lay_out(submission):
    """Their addresses: six tiles, P twice in fp32, lse and delta twice, 12 barriers; k and dS of two in four stages, 8 barriers."""
    tile = 64 * 256 * 2
    dkdv, dq = submission.wide_shapes(256)
    assert dkdv.smem_bytes == 6 * tile + 2 * 64 * 64 * 4 + 4 * 64 * 4 + 12 * 8 <= SMEM_LIMIT_BYTES
    assert dq.smem_bytes == 4 * (tile + dq.rows * 64 * 2) + 8 * 8 <= SMEM_LIMIT_BYTES


C_TYPES = {"int": ctypes.c_int, "float": ctypes.c_float, "long long": ctypes.c_longlong}


@pytest.mark.parametrize(
    ("file", "name", "mirror"),
    [("backward.cu", "Params", "Params"), ("three.cu", "Params", "ThreeParams"),
     ("spare.cuh", "Spare", "Spare"), ("spare.cuh", "Stored", "Stored"), ("passes.cuh", "Passes", "Passes"), ("wide.cu", "Part", "Part"),
     ("rows.cuh", "Keys", "Keys"), ("rows.cuh", "Strides", "Strides")],
)  # fmt: skip
def test_structures_match_the_kernels(submission, file, name, mirror):
    source = (FOLDER / "kernels" / file).read_text()
    body = re.search(rf"struct {name} \{{(.*?)\}};", source, re.S).group(1)
    wanted = []
    for line in re.sub(r"//.*", "", body).split(";")[:-1]:
        kind, names = re.fullmatch(r"((?:const )?(?:long long|\w+)\*?) (.*)", line.strip()).groups()
        wanted += [(n.strip(), kind) for n in names.split(",")]
    for module in (submission, on_cpu):
        fields = [
            (n, f"{type_.__name__}" if issubclass(type_, ctypes.Structure) else type_)
            for n, type_ in getattr(module, mirror)._fields_
        ]
        assert fields == [
            (n, ctypes.c_void_p if "*" in kind else C_TYPES.get(kind, kind)) for n, kind in wanted
        ]


def test_a_view_is_read_where_it_lies_if_it_can_be(submission):
    import torch

    rows_first = torch.zeros(2, 16, 3, 64, dtype=torch.float16).transpose(1, 2)
    assert submission._ready(rows_first) is rows_first
    assert not submission._even(rows_first)
    assert submission._even(rows_first[:1])
    assert submission._even(torch.zeros(2, 3, 16, 64)[:, :, :8])
    for odd in (rows_first.expand(2, 3, 16, 64)[..., ::2], torch.zeros(1, 1, 1, 64).expand(2, 3, 16, 64),
                torch.zeros(2, 3, 16, 68)[..., 4:], torch.zeros(2, 3, 16, 66).half()[..., :64]):  # fmt: skip
        assert submission._ready(odd).is_contiguous()


def test_a_tensor_of_a_cpu_is_refused(submission):
    import torch

    q = torch.zeros(1, 1, 16, 64)
    with pytest.raises(NotImplementedError, match="runs on a Hopper GPU, not on a CPU"):
        submission._check(q, q, q, q, q, q, True)


class OnGpu:
    """A tensor's face, as much of it as the check looks at."""

    is_cuda, device = True, "cuda:0"

    def __init__(self, *shape, dtype="float16"):
        import torch

        self.shape, self.dtype = torch.Size(shape), getattr(torch, dtype)

    def dim(self):
        return len(self.shape)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"k": OnGpu(2, 3, 16, 64), "v": OnGpu(2, 3, 16, 64)}, "heads of k must divide"),
        ({"k": OnGpu(2, 4, 8, 64), "v": OnGpu(2, 4, 8, 64)}, "as many keys as queries"),
        ({"v": OnGpu(2, 2, 32, 64)}, r"v is \(2, 2, 32, 64\)"),
        ({"do": OnGpu(2, 4, 16, 64, dtype="bfloat16")}, "do is .*bfloat16"),
        ({"q": OnGpu(2, 4, 16, 96)}, "headdim one of"),
        ({"q": OnGpu(2, 4, 16, 64, dtype="float32")}, "wanted fp16 or bf16"),
        ({"lse": OnGpu(2, 4, 16)}, "lse is"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused(submission, wrong, says):
    fine = {n: OnGpu(2, 4, 16, 64) for n in ("q", "k", "v", "o", "do")}
    fine["lse"] = OnGpu(2, 4, 16, dtype="float32")
    submission._check(**fine, causal=True)
    submission._check(**fine | {n: OnGpu(2, 2, 99, 64) for n in ("k", "v")}, causal=True)
    with pytest.raises(ValueError, match=says):
        submission._check(**fine | wrong, causal=True)


# --------------------------------------------------------------------------- the check's own eyes
@pytest.fixture(scope="module")
def check():
    pytest.importorskip("torch")
    path = ROOT / "benchmarks" / "backward_kernel.py"
    spec = importlib.util.spec_from_file_location("backward_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_says_what_is_wrong(check):
    import torch

    torch.manual_seed(0)
    want = torch.randn(2, 256, 64, dtype=torch.float64)
    assert check.measure(want.half(), want)[0] < 1e-3
    got = want.clone()
    got[1, 64:128, 32:] *= 2
    text = check.describe("dk", got, want)
    assert "1 of 8 tiles wrong, first (head, tile) [1, 1]" in text
    assert "columns: 32-39 40-47 48-55 56-63" in text
    assert "times 0.500" in check.describe("dq", want / 2, want)
    swapped = want.unflatten(2, (-1, 2, 32)).flip(3).flatten(2, 4)
    assert "right if neighbouring 32 columns are swapped" in check.describe("dq", swapped, want)


def test_the_check_s_reference_is_autograd(check):
    import torch

    torch.manual_seed(1)
    q, k, v, do = (torch.randn(2, 48, 64, dtype=torch.float64) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.3)
    wanted = torch.autograd.grad(o, leaves, do)
    for ours, theirs in zip(check.reference(q, k, v, do, True, 0.3)[2:], wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)


def test_the_check_lets_honest_rounding_through(check, monkeypatch, capsys):
    """P and dS rounded to fp16 as FlashAttention does, on every small input: nothing is called wrong."""
    import torch

    def honest(q, k, v, o, lse, do, causal, scale, _build):
        scale = q.shape[3] ** -0.5 if scale is None else scale
        q, k, v, o, do = (x.float() for x in (q, k, v, o, do))
        p = (q @ k.mT * scale - lse[..., None]).exp()
        p = p.tril() if causal else p
        ds = (p * (do @ v.mT - (do * o).sum(-1, keepdim=True))).half().float()
        p = p.half().float()
        return [x.half() for x in (ds @ k * scale, ds.mT @ q * scale, p.mT @ do)]

    monkeypatch.setattr(check, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    module = type("Module", (), {"custom_attention_backward": staticmethod(honest)})
    cases = [case for case in check.small_cases(64) if case[1][2] == 256]
    assert {case[0] for case in cases} == set(check.tensors.DISTRIBUTIONS)
    wrong = [case for case in cases if not check.check_case(module, None, *case)]
    assert not wrong, capsys.readouterr().out


def test_the_grid_reads_its_builds(submission, check, monkeypatch):
    monkeypatch.setitem(sys.modules, "backward_kernel", check)
    path = ROOT / "benchmarks" / "backward_grid.py"
    spec = importlib.util.spec_from_file_location("backward_grid", path)
    grid = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grid)
    assert grid.chosen_builds(submission, []) == {"submission": None}
    texts = ["a=ahead lead=2 cuts -DGENERAL=1", "p=three section=16"]
    found = grid.chosen_builds(submission, texts)
    assert found["a"] == submission.Build("ahead", (GENERAL,), cuts=True, lead=2)
    assert found["p"] == submission.Build("three", section_bytes=16 << 20)
    for wrong in ("a=nowhere", "a=", "a", "p=three section=x", "p=three section", "p=three 16"):
        with pytest.raises(SystemExit, match=re.escape(f"--build {wrong!r}")):
            grid.chosen_builds(submission, [wrong])


def test_a_child_that_dies_costs_one_headdim(check, monkeypatch):
    calls = []

    def child(_limit, *arguments):
        calls.append(arguments[-1])
        first = [["ahead 64 "], [check.END], ["ahead 128 "]]
        return (first, False) if len(calls) == 1 else ([["ahead 256 "]], True)

    monkeypatch.setattr(check, "child", child)
    assert check.check_all(["ahead"]) == ["ahead 64 ", "ahead 128 ", "ahead 256 "]
    assert calls == ["64,128,256", "256"]


# ------------------------------------------------------------------------------- with a GPU
@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128, 256])
def test_gradients_on_the_gpu(submission, check, headdim):
    """What `build_for` launches for each."""
    for build in {submission.BUILDS[headdim], submission.build_for(headdim, 1, True)}:
        assert all(
            check.check_case(submission, build, *case) for case in check.small_cases(headdim)
        )
