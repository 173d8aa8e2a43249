"""The gate's numbers: honest rounding passes, every cheaper arithmetic is far outside."""

from __future__ import annotations

import math

import pytest
import torch

from harness.judge.desk import is_dense
from harness.judge.gate import Reference, grade, worst
from harness.judge.secret import Secret
from harness.problems import attention_forward_tensors as tensors
from harness.problems import get_problem
from harness.schema import Case, Claims, Dtype

CASE = Case(name="c", batch=2, heads=2, seqlen=200, headdim=64)
CALL = {"causal": True, "sm_scale": None}
LIMITS = get_problem("attention_forward").limits(Dtype.FP16)


def draw(kind: str = "normal", seed: int = 1) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tensors.make_inputs(CASE, kind, generator, torch.device("cpu"), {})


def reference(inputs: tuple[torch.Tensor, ...]) -> Reference:
    return Reference(tensors.contract(inputs, CALL)[0], tensors.exact(inputs, CALL)[0])


def test_float64_is_softmax_by_definition() -> None:
    q, k, v = (tensor.double() for tensor in draw())
    scores = q @ k.transpose(-1, -2) / math.sqrt(64)
    scores.masked_fill_(torch.ones(200, 200, dtype=torch.bool).triu(1), -math.inf)
    expected = torch.softmax(scores, -1) @ v
    torch.testing.assert_close(
        tensors.exact(draw(), CALL)[0].double(), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", sorted(tensors.DISTRIBUTIONS))
def test_sdpa_is_exact_on_every_distribution(kind: str, causal: bool) -> None:
    inputs, call = draw(kind), {"causal": causal, "sm_scale": 0.09}
    out = tensors.contract(inputs, call)[0]
    found = grade(out, Reference(out, tensors.exact(inputs, call)[0]))
    assert found.finite
    assert found.rel_l2 < LIMITS.rel_l2
    assert found.worst_row < LIMITS.worst_row


@pytest.mark.parametrize("kind", sorted(tensors.DISTRIBUTIONS))
def test_one_head_in_float64_says_the_same(kind: str) -> None:
    inputs = draw(kind)
    contract, exact = tensors.contract(inputs, CALL)[0], tensors.exact(inputs, CALL)[0]
    found = grade(contract, Reference(contract, exact.flatten(0, 1)[3], head=3))
    assert found.rel_l2 < LIMITS.rel_l2
    spoiled = contract.clone()
    spoiled[0, 0, 7] *= 1.01  # another head than the one in float64: SDPA's answer catches it
    assert (
        grade(spoiled, Reference(contract, exact.flatten(0, 1)[3], head=3)).worst_row
        > LIMITS.worst_row
    )


def test_nan_is_not_finite_and_never_small() -> None:
    inputs = draw()
    out = tensors.contract(inputs, CALL)[0].clone()
    out[1, 1, 5, 3] = math.nan
    found = grade(out, reference(inputs))
    assert not found.finite
    assert not found.max_diff < LIMITS.contract
    assert not worst([found, grade(tensors.contract(inputs, CALL)[0], reference(inputs))]).finite


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_a_small_error_in_one_row_is_seen(share: float) -> None:
    inputs = draw()
    out = tensors.contract(inputs, CALL)[0].clone()
    out[0, 1, 150] *= 1 + share
    assert grade(out, reference(inputs)).worst_row > 2 * LIMITS.worst_row


def test_fp8_scores_are_outside() -> None:
    q, k, v = draw()
    cheap = (q.to(torch.float8_e4m3fn).half(), k.to(torch.float8_e4m3fn).half(), v)
    found = grade(tensors.contract(cheap, CALL)[0], reference((q, k, v)))
    assert found.rel_l2 > 8 * LIMITS.rel_l2


def test_probes_stay_within_the_claims() -> None:
    problem = get_problem("attention_forward")
    claims = Claims(causal="true", seqlen_multiple=64, seqlen_min=64)
    for probe in problem.probes(CASE, claims):
        assert probe.case.seqlen % 64 == 0
        assert probe.kwargs["causal"] is True
        assert probe.distribution in tensors.DISTRIBUTIONS
        assert not claims.refusal(probe.case)
    scales = {probe.kwargs["sm_scale"] for probe in problem.probes(CASE, Claims())}
    assert len(scales) > 1


def test_audits_keep_the_timed_shape() -> None:
    for probe in get_problem("attention_forward").audits(CASE):
        assert probe.case == CASE
        assert probe.distribution != "normal"


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3, 4), (12, 4, 1), True),
        ((2, 3, 4), (4, 8, 1), True),  # (S, B, D) seen as (B, S, D)
        ((2, 3, 4), (12, 4, 0), False),
        ((2, 3, 4), (24, 8, 2), False),
        ((1, 3, 4), (999, 4, 1), True),
        ((2, 3), (3, 1, 1), False),
    ],
)
def test_only_permuted_contiguous_is_dense(
    shape: tuple[int, ...], strides: tuple[int, ...], dense: bool
) -> None:
    assert is_dense(shape, strides) is dense


def test_a_secret_tells_nothing_but_itself() -> None:
    secret = Secret(b"k" * 32)
    assert secret.seed("a/0") != secret.seed("a/1")
    assert secret.seed("a/0") == Secret(b"k" * 32).seed("a/0")
    assert Secret().commitment != Secret().commitment
    assert 0 <= secret.seed("x") < 1 << 63


def test_grading_leaves_the_output_alone() -> None:
    inputs = draw()
    out = tensors.contract(inputs, CALL)[0].float()  # a copy to float32 would be the tensor itself
    before = out.clone()
    grade(out, reference(inputs))
    assert torch.equal(out, before)
