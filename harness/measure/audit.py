"""Does a record agree with itself: figures with samples, secret with commitment? Pure.

Of a row that comes from elsewhere (an artifact, a node): would a run of today have written it?
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from harness.measure import stats
from harness.measure.evenness import FASTER_THAN_BURSTS_PCT, leap
from harness.measure.gpu_specs import peak_tflops, tensor_tflops
from harness.measure.stopping import level_of
from harness.measure.two_clocks import GPU_TOLERANCE, check_clocks
from harness.measure.verdict import (
    MIN_BLOCKS,
    UNEXAMINED,
    clock_mhz,
    drift_pct,
    pace_of,
    unstable_because,
)
from harness.problems import get_problem
from harness.schema import CLAIM_PCT, Entrant, Kind, Result, Speedup, Status, Suite, times_ms

ROUNDING = 1e-9  # figures in a record are written in full
#: Of the blocks that a suite asks for: left out when late or at Ctrl-C, run again when disturbed.
FEWEST_BLOCKS, MOST_BLOCKS = 0.5, 1.5
READS_PCT = 0.5  # of a stretch, that its last spot checks are away from its end


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
    """Why a record's error is not its own, of a row which passed, or of its class; else empty."""
    limits = get_problem(result.problem).limits(result.case.dtype)
    error = result.error
    same = str(result.max_diff) == str(error.max_diff if error else None)  # NaN is like itself
    unlike = [] if same else ["its max_diff is not its error's"]
    if result.status is not Status.PASSED:
        return unlike
    if error is None or not error.finite or not error.max_diff < limits.contract:
        return ["its error is not below the contract"]
    if min(error.max_diff, error.rel_l2, error.worst_row) < 0:
        return ["its error is not below the contract: it is negative"]
    if result.numerics_class != ("exact" if limits.exact(error) else "approximate"):
        return ["its class is not that of its error"]
    return unlike


def unlike_a_run(
    result: Result, base: Result | None, suite: Suite, entrant: Entrant,
    rows: Mapping[str, Result] | None = None, cut: bool = False,
) -> list[str]:  # fmt: skip
    """Why no run of `suite` writes this row of `entrant`; base: its baseline's row on that case.

    `cut`: by Ctrl-C, before the secret was told; a few blocks are kept then.
    `rows`: of the same case and run, by entry; among them who its own gaps are held against.
    """
    passed, hidden = result.status is Status.PASSED, result.case.hidden
    planned = max(5, suite.blocks // 2) if hidden else suite.blocks
    fewest = MIN_BLOCKS if cut else math.ceil(FEWEST_BLOCKS * planned)
    most = int(MOST_BLOCKS * suite.blocks)
    told = {(r.status, r.run, r.date) for r in (result, base or result)}
    checks = {
        "lse was judged, says who was not asked for it, or the other way round": (
            result.lse is (passed and not hidden and entrant.manifest.claims.lse)
        ),
        "a sample does not hold one time per call": all(
            len(s.calls_ms) == result.case.burst for s in result.samples
        ),
        "a block occurs twice": len({s.block for s in result.samples}) == len(result.samples),
        f"fewer than {fewest} blocks": not passed or result.blocks >= fewest,
        "a reason, and it passed": not passed or result.reason in {"", UNEXAMINED},
        f"more than {most} blocks": len(result.samples) <= most,
        "its secret was never told": not passed or cut or bool(result.secret),
        "its slack tells no pace": not (result.slack and result.machine.has_gpu)
        or bool(result.slack.pace),
        "a speed-up over a baseline that did not pass, or of another run": (
            result.speedup is None or (base is not None and len(told) == 1)
        ),
    }
    faults = [why for why, fine in checks.items() if not fine]
    faults += audit(result, base) + overstated(result)
    faults += short_of_the_clock(result, base, rows)
    return faults + of_stretch(result)


def of_stretch(result: Result) -> list[str]:
    """Why its lasting time is none: what judge/stretch.py and engine/sustain.py ask of one."""
    told = result.sustained
    if told is None or not (told.latency_ms and told.claimed_ms) or not result.machine.has_gpu:
        return []
    burst_ms = stats.median([sample.latency_ms for sample in result.samples] or [math.inf])
    calls, spent_ms = (sum(pause[i] for pause in told.pauses) for i in (1, 0))
    least = 1 - (CLAIM_PCT + READS_PCT) / 100 - 1 / max(1, told.calls)
    checks = {
        "faster than its bursts": told.latency_ms >= burst_ms * (1 - FASTER_THAN_BURSTS_PCT / 100),
        "longer outside than claimed inside": told.claimed_ms >= told.latency_ms * least,
        "counts by leaps": leap(told.pauses) is None,
        "its pauses are not its calls": calls == told.calls and told.checked > 0,
        "its pauses are not its time": abs(spent_ms - calls * told.latency_ms)
        <= READS_PCT / 100 * spent_ms,
    }
    faults = [f"its stretch: {why}" for why, fine in checks.items() if not fine]
    joules = told.power_w and told.power_w * told.latency_ms / 1e3
    return faults + _differ("sustained.joules_per_call", told.joules_per_call, joules)


def short_of_the_clock(
    result: Result, base: Result | None, rows: Mapping[str, Result] | None = None
) -> list[str]:
    """What a GPU's row tells that its chip, its samples and its baseline's do not."""
    machine = result.machine
    if result.status is not Status.PASSED or not machine.has_gpu:
        return []
    peak, clock = peak_tflops(machine), clock_mhz(result.samples)
    at_clock = tensor_tflops(machine, clock)
    tflops, stretch = result.tflops or 0.0, result.sustained
    most = max(tflops, (stretch and stretch.tflops) or 0.0)
    faults = ["faster than the chip"] if most > (peak or math.inf) else []
    faults += _differ("peak_pct", result.peak_pct, 100 * tflops / peak if peak else None)
    faults += _differ("clock_mhz", result.clock_mhz, clock)
    faults += _differ("clock_pct", result.clock_pct, 100 * tflops / at_clock if at_clock else None)
    if base is None or base.status is not Status.PASSED:
        return faults
    told, trusted = result.slack.pace if result.slack else "", {base.entry: base.samples}
    for name, row in (rows or {}).items() if told else ():  # of an earlier rule: the baseline's
        if row.kind is Kind.BASELINE and row.status is Status.PASSED:
            trusted.setdefault(name, row.samples)
    pace, paced = pace_of(trusted, result.samples)
    found = check_clocks(result.samples, paced, (), GPU_TOLERANCE)
    raw = [[s.model_copy(update={"late": False}) for s in x] for x in (trusted[pace], base.samples)]
    shaky = unstable_because(machine, raw[0], result.telemetry)
    least_pct = found.slack.mean_pct - 0.01 if found.slack else 0.0  # records of an earlier rule
    checks = {
        "its times were not held against the judge's clock": result.slack is not None,
        f"its slack is less than the {least_pct:.2f} % that its clocks leave": (
            result.slack is None or result.slack.mean_pct >= least_pct
        ),
        "the samples called late are not those that the two clocks call late": (
            found.samples == result.samples
        ),
        f"held against the gaps of {told}, where {pace} was faster": told in {"", pace},
        found.refusal: not found.refusal,
        shaky: not shaky,
    }
    faults += [why for why, fine in checks.items() if not fine]
    drifts = map(drift_pct, raw)  # its pace's; by an earlier rule its baseline's
    return faults + min((_differ("drift_pct", result.drift_pct, each) for each in drifts), key=len)


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
