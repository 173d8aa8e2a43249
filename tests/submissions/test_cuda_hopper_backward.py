"""cuda_hopper_backward: its kernels' own source on a CPU against float64, its compilation, its host side."""

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from cuda_ladder import needs_nvcc

import hopper_on_cpu as on_cpu  # isort: skip
from hopper_on_cpu.forward import Case, Forward  # isort: skip
from harness.worker.cuda import resources

ROOT = Path(__file__).resolve().parents[2]
FOLDER = on_cpu.FOLDER
SMEM_LIMIT_BYTES = 227 << 10
WHOLE = 6e-4  # fp16 of P and dS gives 3.7e-4; a lost element of a tile gives more
REGS = ("-DA_IN_REGS=1",)
CHOSEN = {  # headdim -> what is launched for sequences of more than SHORT_ROWS rows
    64: ("kernels/backward.cu", (*REGS, "-DDQ_LATE=1", "-DDQ_RED=1")),
    128: ("kernels/backward.cu", ("-DA_IN_REGS=0", "-DDQ_LATE=2", "-DDV_LATE=0")),
    256: ("kernels/wide.cu", ()),
}
CLASSES = {  # headdim 64, what is launched for short causal sequences and without a mask
    "short": ("kernels/three.cu", ()),
    "full": ("kernels/pair.cu", ()),
}
BLOCKS = {"kernels/three.cu": (192, 384), "kernels/pair.cu": (256, 256)}  # kv rows, threads
SHORT_ROWS = 512
SHORT = CHOSEN | {128: ("kernels/backward.cu", ("-DA_IN_REGS=0",))}
needs_gxx = pytest.mark.skipif(not on_cpu.have_compiler(), reason="g++ is not on PATH")
FUSED = {
    "ahead-64": ("kernels/backward.cu", 64, REGS),
    "ahead-128": ("kernels/backward.cu", 128, ("-DA_IN_REGS=0",)),
    "dq-late-64": ("kernels/backward.cu", 64, (*REGS, "-DDQ_LATE=1", "-DDQ_RED=1")),
    "dq-late-128": ("kernels/backward.cu", 128, CHOSEN[128][1]),
    "three-64": ("kernels/three.cu", 64, ()),
    "pair-64": ("kernels/pair.cu", 64, ()),
    "fused-128": ("steps/02_fused.cu", 128, ()),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """compile(file, headdim, flags, edit) -> library, each kept for the whole file."""
    cache = tmp_path_factory.mktemp("on_cpu")
    return lambda *args, edit=None: on_cpu.compile_kernel(*args, cache, edit)


def fused(libraries, file, headdim, flags, problem, timing, seed, section=1, edit=None):
    """All three launches; the errors of dq, dk, dv."""
    kv_rows, threads = BLOCKS.get(file, (128, 256))
    by_lane = ("-DSTATS_BY_LANE=1",) if "three" in file else ()
    passes = libraries("kernels/passes.cu", headdim, by_lane)
    problem.preprocess(passes, on_cpu.EARLY)
    library = libraries(file, headdim, flags, edit=edit)
    problem.fused(library, threads, section, timing, seed, kv_rows)
    problem.postprocess(passes, on_cpu.EARLY)
    return problem.errors()


# ------------------------------------------------------- the kernels' source, run on a CPU
@needs_gxx
@pytest.mark.parametrize(("file", "headdim", "flags"), FUSED.values(), ids=FUSED)
@pytest.mark.parametrize(("timing", "causal"), [(on_cpu.LATE, True), (on_cpu.RANDOM, False)])
def test_fused_gradients(libraries, file, headdim, flags, timing, causal):
    """Three kv blocks, the last one ragged, whatever the hardware does first."""
    problem = on_cpu.Problem(1, 330, headdim, causal)
    errors = fused(libraries, file, headdim, flags, problem, timing, seed=headdim)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("file", BLOCKS)
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal"),
    [(3, 17, False), (1, 64, True), (2, 129, True), (1, 193, True), (2, 257, False), (1, 450, True)],
)  # fmt: skip
def test_the_classes_of_headdim_64_at_lengths_off_the_tile(libraries, file, heads, seqlen, causal):
    """One tile, one and two kv blocks, warpgroups and sub-blocks without rows; two heads a section."""
    problem = on_cpu.Problem(heads, seqlen, 64, causal)
    errors = fused(libraries, file, 64, (), problem, on_cpu.RANDOM, seqlen, section=2)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
@pytest.mark.parametrize(
    ("heads", "seqlen", "causal"),
    [(3, 17, False), (1, 64, True), (3, 127, False), (2, 129, False), (2, 129, True), (1, 333, True),
     (1, 513, True)],
)  # fmt: skip
def test_what_is_launched_at_lengths_off_the_tile(libraries, headdim, heads, seqlen, causal):
    """The lengths of the harness's probes, with and without causality, several heads."""
    file, flags = (SHORT if seqlen <= SHORT_ROWS else CHOSEN)[headdim]
    problem = on_cpu.Problem(heads, seqlen, headdim, causal)
    if headdim == 256:
        errors = wide(libraries, problem, on_cpu.RANDOM, seqlen, flags)
    else:
        how = (on_cpu.RANDOM, seqlen)
        errors = fused(libraries, file, headdim, flags, problem, *how, section=2)
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
@pytest.mark.parametrize("headdim", CHOSEN)
def test_one_row(libraries, headdim):
    """S = 1: dv = do, and dq and dk are zero but for the rounding of delta."""
    file, flags = SHORT[headdim]
    problem = on_cpu.Problem(2, 1, headdim, True)
    if headdim == 256:
        errors = wide(libraries, problem, on_cpu.LATE, 0, flags)
    else:
        errors = fused(libraries, file, headdim, flags, problem, on_cpu.LATE, 0)
    assert errors["dv"] < WHOLE
    assert max(abs(problem.dq).max(), abs(problem.dk).max()) < 1e-4


@needs_gxx
@pytest.mark.parametrize("scale", [0.0, -0.2, 1e-4])
def test_scales_and_ragged_sections_of_heads(libraries, scale):
    problem = on_cpu.Problem(3, 130, 64, True, scale)
    errors = fused(libraries, *FUSED["ahead-64"], problem, on_cpu.EARLY, seed=0, section=2)
    if scale == 0:
        assert not problem.dq.any()
        assert not problem.dk.any()
        errors = {"dv": errors["dv"]}
    assert max(errors.values()) < WHOLE, errors


@needs_gxx
def test_two_kernels(libraries):
    problem = on_cpu.Problem(1, 150, 256, True)
    problem.preprocess(libraries("kernels/passes.cu", 256, ()), on_cpu.EARLY)
    library = libraries("kernels/two_kernels.cu", 256, ())
    problem.two_kernels(library, on_cpu.RANDOM, 5)
    assert max(problem.errors().values()) < WHOLE, problem.errors()


@needs_gxx
@pytest.mark.parametrize(
    ("timing", "seqlen", "causal", "flags"),
    [
        (on_cpu.LATE, 330, True, ()),
        (on_cpu.RANDOM, 290, False, ()),
        (on_cpu.RANDOM, 40, True, ()),
        (on_cpu.RANDOM, 150, True, ("-DS_FIRST=1",)),
    ],
)
def test_wide(libraries, timing, seqlen, causal, flags):
    """Odd and even numbers of tiles, the last one ragged; one block of dq has a second half without rows."""
    errors = wide(libraries, on_cpu.Problem(1, seqlen, 256, causal), timing, seqlen, flags)
    assert max(errors.values()) < WHOLE, errors


def wide(libraries, problem, timing, seed, flags=(), edit=None):
    """The errors of dq, dk and dv by kernels/wide.cu."""
    problem.preprocess(libraries("kernels/passes.cu", 256, ()), on_cpu.EARLY)
    library = libraries("kernels/wide.cu", 256, flags, edit=edit)
    problem.two_kernels(library, timing, seed, wide=True)
    return problem.errors()


# Each takes one thing away that the kernel needs; some order of events must show it.
MISTAKES = {
    "no barrier between writing dS and reading it": ("ahead-64", "else bar_sync(1, THREADS);", ""),
    "a tile is loaded into a slot in use": ("ahead-64", "load_tile(tile + 2, stage + 2 >=", "load_tile(tile + 2, stage + 1 >="),
    "dQ written over before it was read": ("ahead-64", "bulk_wait_read(); __syncwarp();", "__syncwarp();"),
    "late dQ: nobody waits for dS": ("dq-late-64", "mbar_wait(ds_full + 8 * before, ds_parity);   //", "//"),
    "late dQ: a slot too few": ("dq-late-64", "DQ_LATE == 1 ? 4 : 3;", "3;"),
    "three: nobody waits for dS": ("three-64", "mbar_wait(ds_full + 8 * before, ds_parity);  ", ""),
    "three: a slot too few": ("three-64", "STAGES = 4,", "STAGES = 3,"),
    "three: two buffers of dS": ("three-64", "DS_BUFFERS = 3;", "DS_BUFFERS = 2;"),
    "three: dS of what sees nothing is not 0": ("three-64", "store_no_ds(ds_tile);", ""),
    "three: dS is not fenced": ("three-64", "proxy_fence(); __syncwarp(); mbar_arrive_if(ds", "mbar_arrive_if(ds"),
    "pair: nobody waits for dS": ("pair-64", "mbar_wait(ds_full + 8 * before, ds_parity);  ", ""),
    "pair: a tile is loaded into a slot in use": ("pair-64", "(stage + 2) % STAGES", "(stage + 1) % STAGES"),
    "pair: two buffers of dS": ("pair-64", "DS_BUFFERS = 3;", "DS_BUFFERS = 2;"),
    "pair: dS is not fenced": ("pair-64", "proxy_fence(); __syncwarp(); mbar_arrive_if(ds", "mbar_arrive_if(ds"),
    "late dQ, two buffers: dS over one in use": ("dq-late-128", "mbar_wait(ds_full, ds_parity), store_ds", "store_ds"),
}  # fmt: skip


WIDE_MISTAKES = {
    "P is taken before it is there": ("mbar_wait(p_full + 8 * slot, i >> 1 & 1);", ""),
    "q and do are loaded into slots in use": ("mbar_wait(empty + 8 * slot, (i >> 1 & 1) ^ 1);", ""),
    "v is loaded into its slot in use": ("mbar_wait(v_empty, (i & 1) ^ 1);", ""),
}  # fmt: skip


def shows(old, new, attempt):
    """Whether some order of events makes `attempt(timing, seed, edit)` fail; the worst error otherwise."""

    def edit(source):
        assert old in source
        return source.replace(old, new)

    worst = 0.0
    try:
        for timing, seed in [(on_cpu.LATE, 0), *((on_cpu.RANDOM, n) for n in range(4))]:
            errors = attempt(timing, seed, edit)
            worst = max(worst, *np.nan_to_num(list(errors.values()), nan=1e9))
            if worst > WHOLE:
                return
    except on_cpu.KernelFailed:
        return
    pytest.fail(f"all orders of events gave right gradients, worst error {worst:.1e}")


@needs_gxx
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(libraries, mistake):
    build, *change = MISTAKES[mistake]

    def attempt(timing, seed, edit):
        problem = on_cpu.Problem(1, 330, FUSED[build][1], True)
        return fused(libraries, *FUSED[build], problem, timing, seed, edit=edit)

    shows(*change, attempt)


@needs_gxx
@pytest.mark.parametrize("mistake", WIDE_MISTAKES)
def test_a_mistake_in_wide_shows(libraries, mistake):
    def attempt(timing, seed, edit):
        return wide(libraries, on_cpu.Problem(1, 330, 256, False), timing, seed, edit=edit)

    shows(*WIDE_MISTAKES[mistake], attempt)


@needs_gxx
def test_the_forward_kernel_runs_on_the_same_twin(tmp_path):
    """What an H200 made of wgmma operands, swizzles, TMA and barriers is what the twin makes of them."""
    error, _ = Forward(tmp_path, headdim=128).errors(Case(300, causal=True))
    assert error < 4e-4


# ------------------------------------------------------------------------- compilation
@needs_nvcc
@pytest.mark.parametrize("headdim", [64, 128])
def test_the_rung_in_steps_compiles_cleanly(headdim):
    source = FOLDER / "steps" / "02_fused.cu"
    flags = [f"-DHEADDIM={headdim}", f"-I{FOLDER / 'kernels'}"]
    log, _, kernels = resources.nvcc(source.read_text(), "sm_90a", source.parent, flags)
    (report,) = resources.parse_ptxas(log, kernels)
    assert report.warnings == ()


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
    for headdim, (file, flags) in (*CHOSEN.items(), *SHORT.items()):
        built = " ".join((f"// build: -DHEADDIM={headdim}", *flags))
        assert f"{built}\n" in (FOLDER / file).read_text()


@pytest.mark.parametrize(
    ("headdim", "flags", "slots", "ds_buffers"),
    [
        (64, (), 3, 2),
        (128, (), 3, 2),
        (64, CHOSEN[64][1], 4, 3),
        (128, FUSED["dq-late-128"][2], 3, 2),
    ],
)
def test_shared_memory_is_what_the_kernel_lays_out(submission, headdim, flags, slots, ds_buffers):
    """The kernel's own constants, added up in the order of its addresses."""
    m, n = 64, 128
    k_v, q_do, ds = 2 * n * headdim * 2, 2 * slots * m * headdim * 2, ds_buffers * n * m * 2
    dq, stats, barriers = 8 * (headdim // 4) * 32 * 4, 2 * slots * m * 4, 2 * slots + 2 + ds_buffers
    wanted = k_v + q_do + ds + dq + stats + 8 * barriers
    assert submission.fused_smem_bytes(headdim, flags) == wanted <= SMEM_LIMIT_BYTES


@pytest.mark.parametrize(("rung", "rows"), [("three", 192), ("pair", 256)])
def test_shared_memory_of_the_classes_is_what_their_kernels_lay_out(submission, rung, rows):
    """k and v; four tiles of q and of do; dS thrice; lse and delta four times; 13 barriers."""
    kv, tile, stats = rows * 64 * 2, 64 * 64 * 2, 64 * 4
    wanted = 2 * kv + 8 * tile + 3 * rows * 64 * 2 + 8 * stats + 13 * 8
    assert submission.turns_smem_bytes(rows) == wanted <= SMEM_LIMIT_BYTES
    assert BLOCKS[submission.FILES[rung]] == (
        submission.KV_ROWS[rung],
        submission.THREADS.get(rung, 256),
    )
    promised = f"// promise: smem_bytes={wanted} "
    assert promised in (FOLDER / submission.FILES[rung]).read_text()


def test_classes_of_shapes_choose_among_what_was_measured(submission):
    def launched(*shape):
        build = submission.build_for(*shape)
        return submission.FILES[build.rung], build.flags

    for seqlen in (1, 512, 2048):
        assert launched(64, seqlen, True) == CLASSES["short"]
    for seqlen in (1, 512, 16384):
        assert launched(64, seqlen, False) == CLASSES["full"]
    for seqlen in (2049, 4096, 16384):
        assert launched(64, seqlen, True) == CHOSEN[64]
    for causal in (True, False):
        assert {launched(128, seqlen, causal) for seqlen in (1, SHORT_ROWS)} == {SHORT[128]}
        assert {launched(128, s, causal) for s in (SHORT_ROWS + 1, 16384)} == {CHOSEN[128]}
        assert {launched(256, seqlen, causal) for seqlen in (1, 4096)} == {CHOSEN[256]}


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


def test_wide_s_shared_memory_is_what_the_kernels_lay_out(submission):
    """Their addresses: six tiles, P twice, lse and delta twice, 12 barriers; seven tiles, 10 barriers."""
    tile = 64 * 256 * 2
    dkdv, dq = submission.two_shapes("wide", 256)
    assert dkdv.smem_bytes == 6 * tile + 2 * 64 * 64 * 2 + 4 * 64 * 4 + 12 * 8 <= SMEM_LIMIT_BYTES
    assert dq.smem_bytes == 7 * tile + 10 * 8 <= SMEM_LIMIT_BYTES


def test_params_match_the_kernels(submission):
    fused = ("kernels/backward.cu", "kernels/three.cu", "kernels/pair.cu")
    for file in (*fused, "steps/02_fused.cu"):
        source = (FOLDER / file).read_text()
        body = re.sub(r"//.*", "", re.search(r"struct Params \{(.*?)\};", source, re.S).group(1))
        types = {"int": ctypes.c_int, "float": ctypes.c_float}
        wanted = [
            (name, ctypes.c_void_p if star else types[kind.split()[-1]])
            for kind, star, name in re.findall(r"((?:const )?\w+)(\*?)\s+(\w+);", body)
        ]
        assert submission.Params._fields_ == wanted == on_cpu.Params._fields_


def test_a_tensor_of_a_cpu_is_refused(submission):
    import torch

    q = torch.zeros(1, 1, 16, 64)
    with pytest.raises(NotImplementedError, match="runs on a Hopper GPU, not on a CPU"):
        submission._check(q, q, q, q, q, q)


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
    found = grid.chosen_builds(
        submission, ["a=ahead -DA_IN_REGS=1 -DDQ_LATE=1", "p=pair section=16"]
    )
    assert found["a"] == submission.Build("ahead", ("-DA_IN_REGS=1", "-DDQ_LATE=1"))
    assert found["p"] == submission.FULL_64
    for wrong in ("a=nowhere", "a=", "a", "p=pair section=x", "p=pair section", "p=pair 16"):
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
    builds = {
        submission.BUILDS[headdim],
        submission.build_for(headdim, 1, True),
        submission.build_for(headdim, 1, False),
    }
    for build in builds:
        assert all(
            check.check_case(submission, build, *case) for case in check.small_cases(headdim)
        )


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["ahead", "three", "pair"])
def test_every_class_of_headdim_64_on_the_gpu(submission, check, rung):
    """On all shapes, also those that another class is launched for."""
    build = submission.Build(rung) if rung != "ahead" else submission.BUILDS[64]
    assert all(check.check_case(submission, build, *case) for case in check.small_cases(64))
