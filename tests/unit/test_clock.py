"""T1 against T2: a short claim is seen, an honest one never is."""

from __future__ import annotations

import random

import pytest

from harness.clock import CPU_RULES, GPU_RULES, cross_examine
from harness.schema import Sample

CALLS = 6
CALL_MS = 1.0
GAP_MS = 0.9
#: Standard deviation of T2 - T1 in bursts of 6 to 10 calls, measured on one H200 (benchmarks/clocks.py).
JITTER_MS = 0.005


def block(rng: random.Random, index: int, honesty: float = 1.0, spike: float = 0.0) -> Sample:
    call = CALL_MS * rng.lognormvariate(0, 0.01)
    gap = GAP_MS + abs(rng.gauss(0, JITTER_MS)) + spike
    return Sample(block=index, calls_ms=(call * honesty,) * CALLS, t2_ms=call * CALLS + gap)


def blocks(rng: random.Random, count: int = 20, honesty: float = 1.0) -> list[Sample]:
    return [block(rng, n, honesty) for n in range(count)]


def test_two_hundred_honest_runs_are_believed() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        assert cross_examine(blocks(rng), blocks(rng), (), GPU_RULES).refusal == ""


@pytest.mark.parametrize("honesty", [0.97, 0.9, 0.5, 0.0])
def test_a_short_claim_is_refused(honesty: float) -> None:
    for seed in range(50):
        rng = random.Random(seed)
        pace = blocks(rng)
        assert cross_examine(blocks(rng, honesty=honesty), pace, (), GPU_RULES).refusal


def test_one_disturbed_burst_is_marked_and_not_scored() -> None:
    rng = random.Random(1)
    samples = blocks(rng, 19) + [block(rng, 19, spike=5.0)]
    verdict = cross_examine(samples, blocks(rng), (), GPU_RULES)
    assert [sample.block for sample in verdict.samples if sample.late] == [19]
    assert verdict.refusal == ""


def test_mostly_disturbed_is_refused() -> None:
    rng = random.Random(1)
    samples = [block(rng, n, spike=5.0 if n % 2 else 0.0) for n in range(20)]
    assert "of 20 bursts" in cross_examine(samples, blocks(rng), (), GPU_RULES).refusal


def test_slack_is_published_in_percent_of_the_claim() -> None:
    rng = random.Random(2)
    slack = cross_examine(blocks(rng), blocks(rng), [0.8, 0.9, 1.0], GPU_RULES).slack
    assert slack is not None
    assert slack.burst_pct >= GPU_RULES.burst_pct
    assert GPU_RULES.mean_pct * 0.99 <= slack.mean_pct < 1.5
    assert slack.null_gap_ms == 0.9


def test_without_a_pace_nothing_is_claimed() -> None:
    assert cross_examine(blocks(random.Random(3)), [], (), GPU_RULES).slack is None


def test_a_cpu_is_coarse_but_zero_is_still_seen() -> None:
    rng = random.Random(4)
    pace = [Sample(block=n, calls_ms=(50.0,) * 2, t2_ms=103 + rng.random()) for n in range(5)]
    liar = [Sample(block=n, calls_ms=(0.001,) * 2, t2_ms=103 + rng.random()) for n in range(5)]
    assert cross_examine(pace, pace, (), CPU_RULES).refusal == ""
    assert cross_examine(liar, pace, (), CPU_RULES).refusal


def test_a_few_microseconds_a_call_are_no_lie() -> None:
    pace = [Sample(block=n, calls_ms=(0.012,) * 6, t2_ms=0.072 + GAP_MS) for n in range(9)]
    two_kernels = [Sample(block=n, calls_ms=(0.012,) * 6, t2_ms=0.09 + GAP_MS) for n in range(9)]
    verdict = cross_examine(two_kernels, pace, (), GPU_RULES)
    assert verdict.refusal == ""
    assert verdict.slack is not None
    assert verdict.slack.mean_pct > 30  # and the row says how little that proves
