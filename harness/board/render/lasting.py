"""What lasts, in words: calls back to back for seconds, beside what bursts told."""

from __future__ import annotations

from collections.abc import Iterable

from harness.board.render.text import milliseconds, number, sanitize
from harness.measure import stats
from harness.measure.stats import Interval
from harness.schema import Result, Status, Sustained

#: How far two stretches of one kernel may lie apart, to each side.
REPEAT_PCT = 2.0


def lasting(result: Result) -> Sustained | None:
    """Its stretch, if it has one with a time."""
    found = result.sustained
    passed = result.status is Status.PASSED and found and found.status is Status.PASSED
    return found if passed else None


def some_last(results: Iterable[Result]) -> bool:
    """Whether there is anything for a column."""
    return any(lasting(result) for result in results)


def lasting_words(result: Result) -> str:
    """`500.2 TFLOP/s, 1.098 ms, 1597 MHz, 666 W, 1.33 pJ/FLOP`; or why not; or nothing."""
    found = result.sustained
    if found is None:
        return ""
    if found.status is not Status.PASSED:
        return sanitize(f"no lasting time: {found.status.value} ({found.reason})")
    words = [f"{milliseconds(found.latency_ms)} ms over {found.calls} calls"]
    if result.machine.has_gpu:
        words.insert(0, f"{number(found.tflops, 1)} TFLOP/s")
    if found.clock_mhz:
        words.append(f"{found.clock_mhz:.0f} MHz")
    if found.power_w:
        words.append(f"{found.power_w:.0f} W")
    if found.pj_per_flop:
        words.append(f"{found.pj_per_flop:.3g} pJ/FLOP ± {found.energy_error_pct:.1f} %")
    return ", ".join(words)


def speed_ratio(a: Result, b: Result) -> Interval | None:
    """Lasting time of `b` / lasting time of `a`; None unless both have one."""
    mine, its = lasting(a), lasting(b)
    if not (mine and its and mine.latency_ms and its.latency_ms):
        return None
    return _within(its.latency_ms / mine.latency_ms, REPEAT_PCT)


def energy_ratio(a: Result, b: Result) -> Interval | None:
    """Joules a call of `a` / of `b`: below 1 `a` needs less; None unless both have them."""
    mine, its = lasting(a), lasting(b)
    if not (mine and its and mine.joules_per_call and its.joules_per_call):
        return None
    counters = (mine.energy_error_pct or 0) + (its.energy_error_pct or 0)
    return _within(mine.joules_per_call / its.joules_per_call, REPEAT_PCT + counters)


def energy_words(ratio: Interval) -> str:
    """`5.6 % less energy`, `2.0 % more energy`, `as much energy, as far as is told`."""
    if ratio.holds(1.0):
        return "energy not told apart"
    return f"{abs(1 - ratio.value):.1%} {'less' if ratio.value < 1 else 'more'} energy"


def _within(value: float, pct: float) -> stats.Interval:
    return Interval(value, value / (1 + pct / 100), value * (1 + pct / 100))
