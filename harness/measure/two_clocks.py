"""Two clocks, one verdict: does the worker's claim fit what the judge saw from outside? Pure.

T1 is what the worker says its K calls took. T2 is the judge's clock around the same stretch. Their
gap is two words passed between two processes, which the GPU changes between meanwhile: on one H200
0.295 ms, whatever is computed and however many calls it takes. So the gap of a trusted baseline
that ran in the same blocks through the same code (the control) tells what it should be. A worker
that understates T1 widens its own gap by as much.

Whoever disturbs the trusted ones can only widen their gaps. No true gap is shorter than the
shortest of theirs, so no claim can be further short than its own gap is longer than that one. That
bound is the slack: it grows with every disturbance of the control, and a row whose slack is above
MOST_SLACK_PCT is not ranked.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.measure.stats import cut
from harness.schema import Sample, Slack, gate_delay_ms


@dataclass(frozen=True)
class ClockTolerance:
    """How much wider than the control a gap may be: of T1, or of the control's noise."""

    burst_pct: float
    mean_pct: float
    burst_floor_ms: float
    mean_floor_ms: float
    null_ms: float  # how much shorter the gap of the null kernel may be than anybody's who computes
    late_share: float  # more disturbed bursts than this, and than one, is not a disturbance
    call_share: float  # of the mean call that one behind the longest takes at least
    rest_ms: float  # what a worker may do beside its calls; it heats the chip for who comes next
    alone_pct: float  # of a call in a burst: by so much, and the floor, it may be longer by itself
    alone_floor_ms: float
    alone_blocks: int  # in which everybody makes a call by itself as well
    burst_sigmas: float = 6.0
    mean_sigmas: float = 4.0


#: On one H200 a gap's standard deviation is 0.003 ms, and 1 of 90 bursts was 0.014 ms longer than
#: usual. With what a worker's memory costs taken off (OwnTime in harness/judge/stream.py) the mean
#: gaps of 201 honest rows were at most 0.005 ms longer than the control's, of 374 without it 0.025
#: (tests/measure/test_two_clocks.py holds both). In 700 rows no place of a burst was shorter than
#: 0.97 of the mean. Behind 200 ms of matrix products the chip ran at 1470 MHz, not 1980, for who
#: came next; of 1,265 honest workers none had answered, and was locked, later than 22 ms. A call by
#: itself was 0.014 ms longer than in the fastest bursts at most, in 130 rows of submissions.
GPU_TOLERANCE = ClockTolerance(
    burst_pct=1.0,
    mean_pct=0.3,
    burst_floor_ms=0.040,
    mean_floor_ms=0.006,
    null_ms=0.010,
    late_share=0.1,
    call_share=0.5,
    rest_ms=50.0,
    alone_pct=1.0,
    alone_floor_ms=0.012,
    alone_blocks=5,
)
#: A CPU under an interpreter and a scheduler: coarse, and never ranked.
CPU_TOLERANCE = ClockTolerance(
    burst_pct=60,
    mean_pct=30,
    burst_floor_ms=25,
    mean_floor_ms=10,
    null_ms=math.inf,
    late_share=0.34,
    rest_ms=math.inf,
    alone_pct=math.inf,
    alone_floor_ms=math.inf,
    alone_blocks=0,
    call_share=0.0,  # threads that wake make the first call thirty times as long
)


def clock_tolerance(on_gpu: bool) -> ClockTolerance:
    """How the two clocks are compared on a GPU, or on a CPU."""
    return GPU_TOLERANCE if on_gpu else CPU_TOLERANCE


OVERTOLD = "its events took longer than the judge's clock"
GATE_SPARE_MS = 2.0  # of the gate's delay, for hosts slower than any that was seen here
#: Of what a call takes beyond the gate's delay, by itself: its host is in it, and clocks move; two
#: honest ones of 12 and 23 ms took 2.5 and 9.4 % longer, one of 13 that forks 28 %.
LONG_SHARE = 0.5
#: Than the control: whose calls are a thousand small launches waits for its host, also behind its
#: last one; 48 ms of PyTorch told 0.2 too few, on one H200 in two runs of four. Its slack says so.
FAR_SLOWER = 4.0
HOST_UNEVEN = 2.0  # times as long as usual may a slow host take for one of its calls


@dataclass(frozen=True)
class ClockCheck:
    """Samples with disturbed ones marked, the slack left, why the claim is refused (or '')."""

    samples: tuple[Sample, ...]
    slack: Slack | None
    refusal: str = ""
    unlike: str = ""  # why its calls may not be a model's, though nobody is accused


def check_clocks(
    samples: Sequence[Sample],
    control: Sequence[Sample],
    null_gaps_ms: Sequence[float],
    tolerance: ClockTolerance,
) -> ClockCheck:
    """Hold T1 against T2, by burst and on the mean of the blocks, where noise averages out."""
    if not samples or not control:
        return ClockCheck(tuple(samples), None)
    pace_gaps = sorted(sample.gap_ms for sample in control)
    lower = pace_gaps[: (len(pace_gaps) + 1) // 2]  # what disturbs a gap makes it longer
    pace_gap, noise = statistics.median(pace_gaps), 1.4826 * (lower[-1] - statistics.median(lower))
    least = min(pace_gaps[0], *(gap + tolerance.null_ms for gap in null_gaps_ms), math.inf)
    marked = tuple(_mark(sample, pace_gap, noise, tolerance) for sample in samples)
    scored = [sample for sample in marked if not sample.late]
    late = len(marked) - len(scored)
    if not scored or late > max(1, tolerance.late_share * len(marked)):
        said = f"{late} of {len(marked)} bursts took longer outside than claimed inside, or went on"
        return ClockCheck(marked, None, f"{said} behind their end")
    # A burst that is told too long pays for no other: a gap is never shorter than a trusted one.
    gaps = sorted(max(sample.gap_ms, least) for sample in scored)
    t1 = statistics.median(sample.t1_ms for sample in scored)
    # A speed-up trims by the ratio: it may keep the longest of these. Where few are trimmed, a mean
    # alone would let more than half of the bursts, which fix a median, be shorter still.
    kept = gaps[2 * cut(len(gaps)) :]
    excess = max(statistics.fmean(kept), statistics.median(gaps)) - pace_gap
    sigma_mean = noise * (1 / len(scored) + 1 / len(control)) ** 0.5
    allowed = max(
        tolerance.mean_pct / 100 * t1, tolerance.mean_sigmas * sigma_mean, tolerance.mean_floor_ms
    )
    if excess > allowed and t1 > FAR_SLOWER * statistics.median(each.t1_ms for each in control):
        allowed = tolerance.burst_pct / 100 * t1
    if list(samples) == list(control):  # who sets the pace claims nothing against it: slack tells
        allowed = max(allowed, excess)
    slack = Slack(
        burst_pct=_share(pace_gap - least + _burst_allowance(t1, noise, tolerance), t1),
        mean_pct=_share(pace_gap - least + allowed, t1),
        null_gap_ms=statistics.median(null_gaps_ms) if null_gaps_ms else 0.0,
        gap_ms=statistics.median(gaps),
        pace_gap_ms=pace_gap,
    )
    refusal = _answered_ahead(scored, tolerance.call_share)
    if excess > allowed and not refusal:
        refusal = f"claims {t1:.3f} ms a burst, but the judge waited {excess:.3f} ms longer than "
        refusal += f"for the trusted baseline (allowed {allowed:.3f} ms)"
    return ClockCheck(marked, slack, refusal)


def overlapping(
    samples: Sequence[Sample], trusted: Iterable[Sequence[Sample]], tolerance: ClockTolerance
) -> str:
    """Why a burst's calls may overlap, where the next fills a call's tail; or ''.

    It tells by T2 of bursts of one call, whose first calls take longer than others: beyond what
    those of any of the `trusted` do. Nobody makes T2 shorter than its call. It is no accusation:
    who waits for a slow host in each call was 15 % longer by itself on one H100.
    """
    told = [each for each in trusted if any(s.alone_ms is not None for s in each)]
    if not told or all(s.alone_ms is None for s in samples):
        return ""
    gap = min(statistics.median(s.gap_ms for s in each) for each in told)
    usual = max(0.0, min(alone - fast for fast, alone in (_call_ms(each, gap) for each in told)))
    fast, alone = _call_ms(samples, gap)
    allowed = tolerance.alone_pct / 100 * fast + tolerance.alone_floor_ms
    if alone - fast - usual <= allowed + LONG_SHARE * max(0.0, fast - gate_delay_ms(1)):
        return ""
    said = f"a call takes {alone:.3g} ms by itself, in its fast bursts {fast:.3g} ms"
    return f"{said}: its calls overlap, or it waits for a slow host"


def _call_ms(samples: Sequence[Sample], gap_ms: float) -> tuple[float, float]:
    """A call of the bursts, and one by itself.

    The former is at most what a row tells: the median, or, if that is less, the mean of all but the
    slowest fifth, at least a speed-up's. The latter is a median: one rough call hides no overlap;
    of those that may wait for their host it is the least.
    """
    scored = sorted(s.latency_ms for s in [s for s in samples if not s.late] or samples)
    mean = statistics.geometric_mean(scored[: len(scored) - len(scored) // 5])
    fast = min(mean, statistics.median(scored))
    alone = sorted(s.alone_ms for s in samples if s.alone_ms is not None)
    return fast, alone[(len(alone) - 1) // 2 if fast < gate_delay_ms(1) else 0] - gap_ms


def usual_ms(scored: Sequence[Sample]) -> list[float]:
    """What each call of a burst usually takes, in the order of the calls."""
    places = zip(*(sample.calls_ms for sample in scored), strict=False)
    return [statistics.median(place) for place in places]


def _answered_ahead(scored: Sequence[Sample], least: float) -> str:
    """Why not all calls of a burst are believed to be calls: one answers for others; or ''.

    Where a host is slow, those that it queued in time are short, the others as long as it takes. So
    a short call tells if it lies behind a long one, or too far behind the gate for such a host.
    """
    usual = usual_ms(scored)
    mean_ms, longest_ms, whole_ms = statistics.fmean(usual), max(usual), 0.0
    for call, took_ms in enumerate(usual):
        whole_ms += took_ms
        in_time_ms = HOST_UNEVEN * (gate_delay_ms(len(usual)) - GATE_SPARE_MS + whole_ms)
        alone = max(usual[:call], default=0.0) > mean_ms or (call + 1) * longest_ms > in_time_ms
        if took_ms < least * mean_ms and alone:
            return (
                f"call {call} of its bursts takes {took_ms:.3g} ms, all of them {mean_ms:.3g} ms "
                "on average: another call has done its work"
            )
    return ""


def _mark(sample: Sample, pace_gap: float, noise: float, tolerance: ClockTolerance) -> Sample:
    behind = sample.rest_ms > tolerance.rest_ms
    excess = sample.gap_ms - pace_gap > _burst_allowance(sample.t1_ms, noise, tolerance)
    return sample.model_copy(update={"late": behind or excess})


def _burst_allowance(t1_ms: float, noise: float, tolerance: ClockTolerance) -> float:
    return max(
        tolerance.burst_pct / 100 * t1_ms, tolerance.burst_sigmas * noise, tolerance.burst_floor_ms
    )


def _share(part_ms: float, t1_ms: float) -> float:
    """Percent of T1; of no time at all, everything."""
    return 100 * part_ms / t1_ms if t1_ms else math.inf
