"""The gate's numbers: honest rounding passes, every cheaper arithmetic is far outside."""

from __future__ import annotations

import math

import pytest
import torch

from harness.judge.burst import is_dense
from harness.judge.numerics import Reference, error_of
from harness.judge.secret import Secret
from harness.problems import attention_forward_tensors as tensors
from harness.problems import get_problem
from harness.schema import Case, Claims, Dtype, Error

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
    found = error_of(out, Reference(out, tensors.exact(inputs, call)[0]))
    assert found.finite
    assert found.rel_l2 < LIMITS.rel_l2
    assert found.worst_row < LIMITS.worst_row


@pytest.mark.parametrize("kind", sorted(tensors.DISTRIBUTIONS))
def test_some_rows_in_float64_say_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "SAMPLED_ROWS", 64)
    inputs = draw(kind)
    contract = tensors.contract(inputs, CALL)[0]
    ((rows, exact),) = tensors.exact_rows(inputs, CALL, torch.Generator().manual_seed(3))
    some = Reference(contract, exact, rows)
    assert error_of(contract, some).rel_l2 < LIMITS.rel_l2
    other = next(n for n in range(200) if n not in rows)
    for row in (int(rows[5]), other):  # one in float64, and one where SDPA's answer must do
        spoiled = contract.clone()
        spoiled.view(-1, 64)[row] *= 1.01
        assert error_of(spoiled, some).worst_row > LIMITS.worst_row


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sampled", [1, 70, 400, 100_000])
def test_rows_by_themselves_are_the_rows_of_the_whole(
    causal: bool, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "SAMPLED_ROWS", sampled)
    monkeypatch.setattr(tensors, "CHUNK_ELEMENTS", 1 << 14)  # one head, few rows at a time
    inputs, call = draw(), {"causal": causal, "sm_scale": 0.2}
    ((rows, some),) = tensors.exact_rows(inputs, call, torch.Generator().manual_seed(0))
    whole = tensors.exact(inputs, call)[0].flatten(0, 2)
    assert len(set(rows.tolist())) == len(rows) == some.shape[0]
    assert len(rows) == (800 if sampled > 800 else 4 * -(-sampled // 4))
    torch.testing.assert_close(some, whole[rows], rtol=1e-6, atol=1e-7)


#: Wrong rows of [heads, seqlen], about 1 % of all: what a kernel might gain by.
WRONG_ROWS = {
    "two whole heads": lambda wrong: wrong[89:91].fill_(True),
    "the last rows of every head": lambda wrong: wrong[:, -5:].fill_(True),
    "one run of rows in few heads": lambda wrong: wrong[:8, 100:180].fill_(True),
    "rows far apart": lambda wrong: wrong[:, ::100].fill_(True),
}


@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_wrong_rows_are_among_the_drawn_ones_wherever_they_lie(kind: str) -> None:
    """One head out of 200 would miss the first kind in 99 of 100 draws, the third in 96."""
    heads, seqlen, draws = 200, 512, 400
    wrong = torch.zeros(heads, seqlen, dtype=torch.bool)
    WRONG_ROWS[kind](wrong)
    share = wrong.float().mean().item()
    assert share >= 0.006
    generator = torch.Generator().manual_seed(11)
    missed = 0
    for _ in range(draws):
        rows = tensors.draw_rows(heads, seqlen, generator)
        missed += not wrong.gather(1, rows).any()
    assert missed / draws <= math.exp(-share * rows.numel())


def test_every_row_is_drawn_as_often_as_any_other() -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = torch.zeros(1000, 20)
    for _ in range(100):
        rows = tensors.draw_rows(1000, 20, generator)  # five a head out of strata of four
        drawn.scatter_add_(1, rows, torch.ones_like(rows, dtype=torch.float32))
    per_row = drawn.sum(0) / 100_000
    assert per_row.sum() == pytest.approx(rows.shape[1])
    assert (per_row - rows.shape[1] / 20).abs().max() < 0.01


def test_nan_is_not_finite_and_never_small() -> None:
    inputs = draw()
    out = tensors.contract(inputs, CALL)[0].clone()
    out[1, 1, 5, 3] = math.nan
    found = error_of(out, reference(inputs))
    assert not found.finite
    assert not found.max_diff < LIMITS.contract
    assert not Error.worst_of(
        [found, error_of(tensors.contract(inputs, CALL)[0], reference(inputs))]
    ).finite


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_a_small_error_in_one_row_is_seen(share: float) -> None:
    inputs = draw()
    out = tensors.contract(inputs, CALL)[0].clone()
    out[0, 1, 150] *= 1 + share
    assert error_of(out, reference(inputs)).worst_row > 2 * LIMITS.worst_row


def test_fp8_scores_are_outside() -> None:
    q, k, v = draw()
    cheap = (q.to(torch.float8_e4m3fn).half(), k.to(torch.float8_e4m3fn).half(), v)
    found = error_of(tensors.contract(cheap, CALL)[0], reference((q, k, v)))
    assert found.rel_l2 > 8 * LIMITS.rel_l2


def test_of_lse_a_difference_is_what_the_rows_sum_is_off_by() -> None:
    exact = torch.tensor([[[30.0, -20.0, -math.inf, 0.0]]])
    asked = Reference(exact, exact)
    assert error_of(exact.clone(), asked) == Error(finite=True, max_diff=0, rel_l2=0, worst_row=0)
    out = exact.clone()
    out[0, 0, 1] += 0.02
    found = error_of(out, asked)
    assert (found.max_diff, found.worst_row) == pytest.approx((0.02, 0.02), rel=1e-4)
    assert found.rel_l2 == pytest.approx(0.01, rel=1e-4)
    for wrong, at in ((math.nan, 0), (math.inf, 3), (-math.inf, 3), (0.0, 2)):
        out = exact.clone()
        out[0, 0, at] = wrong
        assert not error_of(out, asked).finite


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


@pytest.mark.parametrize("name", ["attention_forward", "attention_backward"])
def test_who_claims_long_sequences_alone_is_asked_no_short_ones(name: str) -> None:
    """Right within its claims, it failed on 256 tokens."""
    claims = Claims(seqlen_min=CASE.seqlen)
    asked = get_problem(name).probes(CASE, claims)
    assert [probe.label for probe in asked if claims.refusal(probe.case)] == []
    assert len({probe.case.seqlen % 64 for probe in asked}) > 3  # and not the tile's alone


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
    error_of(out, reference(inputs))
    assert torch.equal(out, before)
