"""Does a record agree with itself: figures with samples, secret with commitment? Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from harness.measure import stats
from harness.measure.gpu_specs import peak_tflops
from harness.measure.stopping import level_of
from harness.measure.two_clocks import GPU_TOLERANCE, check_clocks
from harness.measure.verdict import shared
from harness.problems import get_problem
from harness.schema import Result, Speedup, Status, times_ms

ROUNDING = 1e-9  # figures in a record are written in full


def audit(result: Result, base: Result | None) -> list[str]:
    """Everything in which a record contradicts its own samples; empty if nothing does."""
    faults = []
    if result.secret and not _opens(result.secret, result.secret_commitment):
        faults.append("the secret does not open the commitment")
    if result.status is not Status.PASSED or result.latency_ms is None:
        return faults
    scored = times_ms(result.samples)
    if not scored:
        return [*faults, "PASSED without one scored sample"]
    told = stats.summary(list(scored.values()))
    faults += _differ("latency_ms", result.latency_ms, told.median)
    faults += _differ("p10_ms", result.p10_ms, told.p10)
    faults += _differ("p90_ms", result.p90_ms, told.p90)
    flops = get_problem(result.problem).flops(result.case)
    faults += _differ("tflops", result.tflops, flops / told.median / 1e9)
    if result.blocks != len(scored):
        faults.append(f"blocks is {result.blocks}, {len(scored)} were scored")
    if len({sample.block for sample in result.samples}) < len(result.samples):
        faults.append("a block occurs twice")
    faults += [
        f"block {s.block}: the events took longer than the judge's clock"
        for s in result.samples
        if s.t1_ms > s.t2_ms * 1.001 and not s.late
    ]
    if base is not None and result.speedup is not None:
        faults += _of_speedup(
            result.speedup, times_ms(base.samples), scored, level_of(result.looks)
        )
    return faults


def overstated(result: Result) -> list[str]:
    """Why a record's error is not that of a row which passed, or of its class; else empty."""
    limits = get_problem(result.problem).limits(result.case.dtype)
    error = result.error
    if result.status is not Status.PASSED:
        return []
    if error is None or not error.finite or not error.max_diff < limits.contract:
        return ["its error is not below the contract"]
    if min(error.max_diff, error.rel_l2, error.worst_row) < 0:
        return ["its error is not below the contract: it is negative"]
    fits = {"exact": limits.exact(error), "approximate": True}
    if not fits.get(result.numerics_class, False):
        return ["its error is too large for its class, or it has none"]
    if result.max_diff != error.max_diff:
        return ["its max_diff is not its error's"]
    return _beyond_the_chip(result)


def short_of_the_clock(result: Result, base: Result | None) -> list[str]:
    """Why the judge's clock, asked once more, refuses a row of a GPU that passed; else empty."""
    timed = base is not None and {result.status, base.status} == {Status.PASSED}
    if base is None or not timed or not result.machine.has_gpu:
        return []
    if result.slack is None:
        return ["its times were not held against the judge's clock"]
    found = check_clocks(result.samples, shared(base.samples, result.samples), (), GPU_TOLERANCE)
    if found.samples != result.samples:
        return ["the samples called late are not those that the two clocks call late"]
    return [found.refusal] if found.refusal else []


def _beyond_the_chip(result: Result) -> list[str]:
    peak, stretch = peak_tflops(result.machine), result.sustained
    told = [each for each in (result.tflops, stretch and stretch.tflops) if each]
    if peak and max(told, default=0.0) > peak:
        return ["faster than the chip"]
    share = 100 * told[0] / peak if peak and told else None
    return [] if result.peak_pct == share else ["its share of the peak is not its speed's"]


def _of_speedup(
    told: Speedup, base: Mapping[int, float], scored: Mapping[int, float], level: float
) -> list[str]:
    """In what it contradicts the blocks; an interval may be by their rule or by today's.

    Records from before the rule that two processes are never quite one (stats.PROCESS_LOG) lack
    its 0.05 %.
    """
    today = stats.speedup(base, scored, level)
    then = stats.ratio(stats.paired_log_ratios(base, scored), level)
    if today is None or then is None:
        return ["no block in common with its baseline"]
    faults = [
        _differ("speedup.value", told.value, found.value)
        + _differ("speedup.low", told.low, found.low, 1e-6)
        + _differ("speedup.high", told.high, found.high, 1e-6)
        for found in (today, then)
    ]
    return min(faults, key=len)


def _opens(secret: str, commitment: str) -> bool:
    try:
        return hashlib.sha256(bytes.fromhex(secret)).hexdigest() == commitment
    except ValueError:  # not hexadecimal
        return False


def _differ(name: str, told: float | None, found: float, by: float = ROUNDING) -> list[str]:
    if told is not None and math.isclose(told, found, rel_tol=by):
        return []
    return [f"{name} is {told}, the samples give {found:.6g}"]
