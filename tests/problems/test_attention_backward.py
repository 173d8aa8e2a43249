"""The second problem: its arithmetic, its references, its gate, and what must not know that it exists."""

from __future__ import annotations

import importlib.util
import math
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from harness.board.rank import leaderboard  # noqa: E402
from harness.board.render import markdown  # noqa: E402
from harness.catalog import entrants as catalog  # noqa: E402
from harness.catalog.entrants import find_entrants, load_entrant, problem_of  # noqa: E402
from harness.catalog.null_kernel import null_entrant  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.engine.run_state import arena_sizes  # noqa: E402
from harness.errors import SubmissionError  # noqa: E402
from harness.judge.burst import _repeated  # noqa: E402
from harness.judge.inputs import Inputs  # noqa: E402
from harness.judge.numerics import Reference, error_of  # noqa: E402
from harness.problems import PROBLEMS, get_problem  # noqa: E402
from harness.problems import attention_backward_tensors as tensors  # noqa: E402
from harness.problems.base import Probe  # noqa: E402
from harness.schema import Case, Claims, Dtype, Kind, Speedup  # noqa: E402
from tests.board.factory import result  # noqa: E402
from tests.house.count import ours  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BACKWARD, FORWARD = get_problem("attention_backward"), get_problem("attention_forward")
CASE = Case(name="c", batch=1, heads=3, seqlen=128, headdim=64)
LIMITS = BACKWARD.limits(Dtype.FP16)
USUAL = {"causal": True, "sm_scale": None}


def draw(kind="normal", kwargs=None, case=CASE, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return tensors.make_inputs(case, kind, generator, torch.device("cpu"), kwargs or USUAL)


def honest(inputs, causal=True, scale=0.125, cast=lambda x: x.half()):
    """What a fused fp16 kernel computes: given o and lse, P and dS rounded, sums in float32."""
    q, k, v, o, lse, do = (x.float() for x in inputs)
    p = (q @ k.mT * scale - lse[..., None]).exp()
    if causal:
        p = p.tril()
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    p, ds = cast(p).float(), cast(ds).float()
    return [x.half() for x in (ds @ k * scale, ds.mT @ q * scale, p.mT @ do)]


def grades(found, inputs, kwargs=USUAL):
    pairs = zip(tensors.contract(inputs, kwargs), tensors.exact(inputs, kwargs), strict=True)
    references = [Reference(c, e, scaled=True) for c, e in pairs]
    return [error_of(x, reference) for x, reference in zip(found, references, strict=True)]


def exact_class(grade):
    return grade.rel_l2 < LIMITS.rel_l2 and grade.worst_row < LIMITS.worst_row


# ---------------------------------------------------------------------------------------- arithmetic


def test_flops_and_bytes_of_the_official_shapes():
    cases = load_suite("fa3_bwd", ROOT / "configs").cases
    assert [BACKWARD.flops(c) / FORWARD.flops(c) for c in cases] == [2.5] * 3
    assert BACKWARD.flops(cases[0]) == 10 * 4 * 4096**2 * 32 * 64 / 2
    assert BACKWARD.io_bytes(cases[0]) == 8 * cases[0].q_bytes + 4 * 4 * 32 * 4096
    assert [c.shape for c in cases] == [c.shape for c in load_suite("fa3", ROOT / "configs").cases]


def test_several_results_and_float32_inputs_have_room_in_the_arenas():
    case = CASE.model_copy(update={"burst": 2})
    assert [spec.name for spec in BACKWARD.inputs(case)] == list(BACKWARD.parameters[:6])
    lse = BACKWARD.inputs(case)[4]
    assert (lse.shape, lse.dtype) == ((1, 3, 128), "fp32")
    room = 2 * (5 * case.q_bytes + 2048), 2 * 3 * case.q_bytes  # 1.5 KiB of lse, aligned
    assert arena_sizes(BACKWARD, [Probe(case)]) == room


@pytest.mark.parametrize("claims", [Claims(), Claims(causal="false", seqlen_multiple=64)])
def test_probes_stay_inside_the_claims_and_have_a_distribution(claims):
    probes = BACKWARD.probes(CASE, claims)
    assert {p.distribution for p in probes} == set(tensors.DISTRIBUTIONS)
    for probe in probes:
        assert not claims.refusal(probe.case)
        assert probe.kwargs["causal"] == probe.case.causal
        assert probe.case.seqlen > 1  # dq and dk of one token are zero: nothing to compare
    assert {p.distribution for p in BACKWARD.audits(CASE)} <= set(tensors.DISTRIBUTIONS)


# ---------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(("causal", "scale"), [(True, None), (False, 0.3)])
def test_the_reference_is_what_autograd_says_in_float64(causal, scale, monkeypatch):
    monkeypatch.setattr(tensors, "CHUNK_ELEMENTS", 40 * 77)  # pieces of 40 rows and a rest
    case = CASE.model_copy(update={"seqlen": 77})
    kwargs = {"causal": causal, "sm_scale": scale}
    inputs = draw(kwargs=kwargs, case=case)
    q, k, v = (inputs[i].double().requires_grad_() for i in range(3))
    scores = q @ k.mT * (0.125 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(77, 77).triu(1).bool(), -math.inf)
    out = scores.softmax(-1) @ v
    want = torch.autograd.grad(out, (q, k, v), inputs[5].double())
    for mine, theirs in zip(tensors.exact(inputs, kwargs), want, strict=True):
        assert torch.allclose(mine.double(), theirs, rtol=1e-5, atol=1e-7)
    assert (inputs[3].double() - out).abs().max() < 2e-3
    assert (inputs[4].double() - scores.logsumexp(-1)).abs().max() < 1e-3


def test_one_head_of_the_reference_is_that_head():
    inputs = draw()
    one = tuple(x.flatten(0, 1)[2:3].unsqueeze(0) for x in inputs)
    for head, whole in zip(tensors.exact(one, USUAL), tensors.exact(inputs, USUAL), strict=True):
        assert torch.equal(head[0, 0], whole[0, 2])


# ---------------------------------------------------------------------------------------------- gate


@pytest.mark.parametrize("kind", sorted(tensors.DISTRIBUTIONS))
def test_an_honest_kernel_is_exact_on_every_distribution(kind):
    inputs = draw(kind)
    for found in grades(honest(inputs), inputs):
        assert exact_class(found), found
        assert found.max_diff < LIMITS.contract / 2


def test_rounding_to_fewer_bits_is_seen():
    inputs = draw()
    assert not any(map(exact_class, grades(honest(inputs, cast=lambda x: x.bfloat16()), inputs)))
    fp8 = grades(honest(inputs, cast=lambda x: x.to(torch.float8_e4m3fn)), inputs)
    assert all(found.max_diff > LIMITS.contract for found in fp8)


def test_a_gradient_of_small_values_is_held_to_its_own_size():
    inputs = draw("tiny_scale")  # dk is 1e-4: a bar of 1e-2 would let anything through
    dq, _, dv = honest(inputs)
    found = grades([dq, torch.zeros_like(dq), dv], inputs)
    assert found[1].max_diff == pytest.approx(1, rel=0.1)
    assert found[0].max_diff < LIMITS.contract


@pytest.mark.parametrize(
    "spoil",
    [
        lambda dq, dk, dv: (dk, dq, dv),
        lambda dq, dk, dv: (dq.mul(torch.tensor([1.0] * 63 + [0.0])).half(), dk, dv),
        lambda dq, dk, dv: (dq, dk.roll(1, 1), dv),
        lambda dq, dk, dv: (dq, dk, dv * 1.02),
    ],
    ids=["exchanged", "column lost", "another head", "2 % off"],
)
def test_a_wrong_gradient_is_incorrect(spoil):
    inputs = draw()
    worst = max(g.max_diff for g in grades(spoil(*honest(inputs)), inputs))
    assert worst > LIMITS.contract


# ------------------------------------------------------------------------------- the judge's own desk


def burst(repeats):
    specs = BACKWARD.outputs(CASE)
    return Inputs((), specs, [(), ()], [], {}, 1e-2, whole=True, repeats=repeats)


def test_the_same_bits_twice_are_deterministic_and_others_are_not():
    held = [torch.arange(4.0).half() + i for i in range(3)]
    strides = [[1]] * 6
    assert _repeated(burst(repeats=False), held * 2, strides) is None
    assert _repeated(burst(repeats=True), held * 2, strides) is True
    negative_zero = [held[0] * -0.0 if i == 3 else x.clone() for i, x in enumerate(held * 2)]
    negative_zero[0] = held[0] * 0
    assert _repeated(burst(repeats=True), negative_zero, strides) is False


def test_a_failure_names_the_gradient_and_the_call():
    assert [burst(repeats=True).which(i) for i in (1, 5)] == ["dk 0", "dv 1"]


# ------------------------------------------------------------------- nobody else knows which problem


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda p: p.name)
def test_every_problem_has_a_null_kernel_and_its_suites(problem, tmp_path):
    entrant = null_entrant(problem, (CASE,), tmp_path / "null")
    spec = importlib.util.spec_from_file_location("null", entrant.entry_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs = [torch.zeros(s.shape, dtype=torch.float16) for s in problem.inputs(CASE)]
    found = getattr(module, problem.function)(*inputs, **problem.kwargs(CASE))
    found = found if isinstance(found, tuple) else (found,)
    assert [tuple(x.shape) for x in found] == [s.shape for s in problem.outputs(CASE)]
    for name, device in zip(problem.suites, ("gpu", "cpu"), strict=True):
        suite = load_suite(name, ROOT / "configs")
        assert (suite.problem, suite.device) == (problem.name, device)
        find_entrants([suite.against, *suite.baselines], ROOT / "baselines", Kind.BASELINE, problem)


def test_all_means_all_of_one_problem(tmp_path):
    for folder in ours():  # what has owners no test holds
        shutil.copytree(folder, tmp_path / folder.name)
    for folder, kind in ((tmp_path, Kind.SUBMISSION), (ROOT / "baselines", Kind.BASELINE)):
        found = {p.name: find_entrants(["all"], folder, kind, p) for p in PROBLEMS.values()}
        for name, entrants in found.items():
            assert entrants
            assert {e.manifest.problem for e in entrants} == {name}
        everybody = find_entrants(["all"], folder, kind, None)
        assert len(everybody) == sum(map(len, found.values()))


def test_the_wrong_suite_is_answered_with_the_right_one():
    with pytest.raises(SubmissionError, match=r"computes attention_backward") as caught:
        load_entrant(ROOT / "submissions" / "triton_backward", Kind.SUBMISSION, FORWARD)
    assert "--suite fa3_bwd" in caught.value.hint


def test_an_entry_brings_its_own_suite(tmp_path):
    bare = tmp_path / "mine.py"
    bare.write_text("def custom_attention_backward(q, k, v, o, lse, do, causal, sm_scale): ...\n")
    root = ROOT / "submissions"
    assert problem_of(["triton_backward"], root) is BACKWARD
    assert problem_of([str(bare)], root) is BACKWARD
    assert problem_of(["triton_template"], root) is FORWARD
    assert problem_of(["all"], root) is FORWARD
    assert problem_of(["No_such_entry"], root) is FORWARD
    assert problem_of(["cuda_hopper_backward"], root) is BACKWARD
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "manifest.yaml").write_text("name: odd\nproblem: no_such_problem\n")
    assert problem_of([str(tmp_path / "odd")], root) is FORWARD


def test_which_problem_an_entry_solves_is_asked_of_its_manifest_alone(tmp_path, monkeypatch):
    """The request reads, hashes and parses it in a moment anyway."""
    for name in ("check_source", "check_launch", "digest"):
        monkeypatch.setattr(catalog, name, lambda *_: pytest.fail("read for nothing"))
    root = ROOT / "submissions"
    for name in ("triton_backward", "cuda_hopper_backward"):
        assert problem_of([name], root) is BACKWARD


def test_boards_never_mix_problems():
    forward = load_suite("fa3", ROOT / "configs")
    twin = forward.model_copy(update={"problem": "attention_backward"})
    assert forward.sha256 != twin.sha256
    told = Speedup(against="base", value=1.2, low=1.1, high=1.3)
    fields = {"speedup": told, "deterministic": False}
    results = [
        result("mine", suite_sha256=suite.sha256, problem=suite.problem, **fields)
        for suite in (forward, twin)
    ]
    board = leaderboard(results)
    assert len(board.boards) == 2
    assert markdown.render(board).count("## NVIDIA H200") == 2
    assert "not bitwise repeatable" in markdown.render(board)
