"""Two clocks, one verdict: does the worker's claim fit what the judge saw from outside? Pure.

T1 is what the worker says its K calls took. T2 is the judge's clock around the whole burst. Their gap is
copies, messages and launch, and is the same for everybody, so the gap of a trusted baseline that ran in
the same blocks through the same code (the pace) tells what it should be. A worker that understates T1
widens its gap by as much.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.schema import Sample, Slack


@dataclass(frozen=True)
class ClockRules:
    """How much wider than the pace a gap may be: a share of T1, or some multiples of the pace's noise."""

    burst_pct: float = 2.0
    mean_pct: float = 0.5
    burst_floor_ms: float = 0.0
    mean_floor_ms: float = 0.0
    burst_call_ms: float = 0.0  # times K: what lies between two calls of a short kernel
    mean_call_ms: float = 0.0
    burst_sigmas: float = 6.0
    mean_sigmas: float = 4.0
    late_share: float = 0.34  # more disturbed bursts than this is not a disturbance


#: A second kernel of a call, a graph's launch: up to a few microseconds a call are nobody's lie. On the
#: official shapes that is 0.9 % of the shortest burst; on a call of 20 µs it is much, and is published.
GPU_RULES = ClockRules(burst_call_ms=0.010, mean_call_ms=0.004)
#: A CPU under an interpreter and a scheduler: coarse, and never ranked.
CPU_RULES = ClockRules(burst_pct=60, mean_pct=30, burst_floor_ms=25, mean_floor_ms=10)


@dataclass(frozen=True)
class ClockVerdict:
    """Samples with the disturbed ones marked, the slack left, and why the claim is refused (or '')."""

    samples: tuple[Sample, ...]
    slack: Slack | None
    refusal: str = ""


def cross_examine(
    samples: Sequence[Sample],
    pace: Sequence[Sample],
    null_gaps_ms: Sequence[float],
    rules: ClockRules,
) -> ClockVerdict:
    """Hold T1 against T2, burst by burst and on the mean of the blocks, where the noise averages out."""
    if not samples or not pace:
        return ClockVerdict(tuple(samples), None)
    pace_gap = statistics.median(sample.gap_ms for sample in pace)
    noise = _spread([sample.gap_ms for sample in pace])
    marked = tuple(_mark(sample, pace_gap, noise, rules) for sample in samples)
    scored = [sample for sample in marked if not sample.late]
    late = len(marked) - len(scored)
    if not scored or late > rules.late_share * len(marked):
        return ClockVerdict(
            marked, None, f"{late} of {len(marked)} bursts took longer outside than claimed inside"
        )
    t1 = statistics.fmean(sample.t1_ms for sample in scored)
    excess = _middle_mean([s.gap_ms for s in scored]) - _middle_mean([s.gap_ms for s in pace])
    sigma_mean = noise * (1 / len(scored) + 1 / len(pace)) ** 0.5
    calls = len(scored[0].calls_ms)
    allowed = max(
        rules.mean_pct / 100 * t1,
        rules.mean_sigmas * sigma_mean,
        rules.mean_floor_ms + rules.mean_call_ms * calls,
    )
    slack = Slack(
        burst_pct=100 * _burst_allowance(t1, calls, noise, rules) / t1 if t1 else 0.0,
        mean_pct=100 * allowed / t1 if t1 else 0.0,
        null_gap_ms=statistics.median(null_gaps_ms) if null_gaps_ms else 0.0,
        gap_ms=statistics.median(sample.gap_ms for sample in scored),
        pace_gap_ms=pace_gap,
    )
    if excess > allowed:
        return ClockVerdict(
            marked,
            slack,
            f"claims {t1:.3f} ms a burst, but the judge waited {excess:.3f} ms longer than for the trusted "
            f"baseline (allowed {allowed:.3f} ms)",
        )
    return ClockVerdict(marked, slack)


def _mark(sample: Sample, pace_gap: float, noise: float, rules: ClockRules) -> Sample:
    excess = sample.gap_ms - pace_gap
    allowed = _burst_allowance(sample.t1_ms, len(sample.calls_ms), noise, rules)
    return sample.model_copy(update={"late": excess > allowed})


def _burst_allowance(t1_ms: float, calls: int, noise: float, rules: ClockRules) -> float:
    return max(
        rules.burst_pct / 100 * t1_ms,
        rules.burst_sigmas * noise,
        rules.burst_floor_ms + rules.burst_call_ms * calls,
    )


def _middle_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest fifth: what the score's own estimate leans on."""
    cut = len(values) // 5
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def _spread(values: Sequence[float]) -> float:
    """Standard deviation estimated from the median absolute deviation."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)
