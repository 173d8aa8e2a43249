"""Does a record agree with itself: figures with samples, secret with commitment? Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from harness.measure import stats
from harness.measure.gpu_specs import peak_tflops, tensor_tflops
from harness.measure.stopping import level_of
from harness.measure.two_clocks import GPU_TOLERANCE, check_clocks
from harness.measure.verdict import clock_mhz, drift_pct, shared
from harness.problems import get_problem
from harness.schema import Kind, Result, Speedup, Status, times_ms

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
    if (stretch := result.sustained) and stretch.latency_ms:
        joules = stretch.joules_per_call
        faults += _differ("sustained.tflops", stretch.tflops, flops / stretch.latency_ms / 1e9)
        each = joules and 1e12 * joules / flops
        faults += _differ("sustained.pj_per_flop", stretch.pj_per_flop, each)
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
    return [] if result.max_diff == error.max_diff else ["its max_diff is not its error's"]


def short_of_the_clock(
    result: Result, base: Result | None, rows: Mapping[str, Result] | None = None
) -> list[str]:
    """What does not follow from the samples of a GPU's row and of its baseline, clocks included.

    `rows`: of the same case, by entry; among them who its own gaps were held against.
    """
    machine, passed = result.machine, {result.status, base.status if base else None}
    if base is None or passed != {Status.PASSED} or not machine.has_gpu:
        return []
    paced = shared(_pace(result, base, rows or {}).samples, result.samples)
    found = check_clocks(result.samples, paced, (), GPU_TOLERANCE)
    peak, clock = peak_tflops(machine), clock_mhz(result.samples)
    at_clock = tensor_tflops(machine, clock)
    unmarked = [sample.model_copy(update={"late": False}) for sample in base.samples]
    tflops, stretch = result.tflops or 0.0, result.sustained
    least_pct = found.slack.mean_pct - 0.01 if found.slack else 0.0  # records of an earlier rule
    checks = {
        "its times were not held against the judge's clock": result.slack is not None,
        f"its slack is less than the {least_pct:.2f} % that its clocks leave": (
            result.slack is None or result.slack.mean_pct >= least_pct
        ),
        "the samples called late are not those that the two clocks call late": (
            found.samples == result.samples
        ),
        found.refusal: not found.refusal,
        "faster than the chip": max(tflops, (stretch and stretch.tflops) or 0.0)
        <= (peak or math.inf),
    }
    faults = [why for why, fine in checks.items() if not fine]
    faults += _differ("peak_pct", result.peak_pct, 100 * tflops / peak if peak else None)
    faults += _differ("clock_mhz", result.clock_mhz, clock)
    faults += _differ("clock_pct", result.clock_pct, 100 * tflops / at_clock if at_clock else None)
    return faults + _differ("drift_pct", result.drift_pct, drift_pct(unmarked))


def _pace(result: Result, base: Result, rows: Mapping[str, Result]) -> Result:
    """The trusted row that its slack names; the baseline where that is none, or did not pass."""
    named = rows.get(result.slack.pace) if result.slack else None
    trusted = named and named.kind is Kind.BASELINE and named.status is Status.PASSED
    return named if named and trusted else base


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


def _differ(name: str, told: float | None, found: float | None, by: float = ROUNDING) -> list[str]:
    if told == found or (told and found and math.isclose(told, found, rel_tol=by)):
        return []
    return [f"{name} is {told}, the samples give {found}"]
