"""What lasts: behind the blocks of a case seconds of each entrant alone, call after call.

A burst is over before a GPU has come to its power limit; who runs for seconds runs at the clock
that the limit leaves. Order is random. The judge times the stretch and checks its results
(harness/judge/stretch.py); here the energy counter is read meanwhile. Whatever becomes of a
stretch, what the bursts gave stays.
"""

import math
from collections.abc import Set

from harness.engine.burst import Question, Stretch, blamed, bursts_kept, end_woken, run_burst
from harness.engine.run_state import RING, State
from harness.measure import stats
from harness.measure.evenness import SWITCH_MS, lasting
from harness.measure.plan import shuffled
from harness.measure.telemetry import Recorder, mean_clock_mhz, mean_power
from harness.problems.base import Probe
from harness.process.messages import BurstReport, StretchReport
from harness.schema import Case, Kind, Status, Sustained

FEWEST_CALLS, MOST_CALLS = 40, 200_000  # however long or short a call is
KEPT_MS = 2.4 * SWITCH_MS  # of calls whose results are kept: leaps beyond fewer would not show


def sustain(state: State, case: Case, left: Set[str] = frozenset()) -> None:
    """One stretch of everybody who is timed on `case` but `left`; nothing unless the suite asks."""
    if not state.suite.sustained_s:
        return
    without = {state.roles.null} | state.hidden | left
    for name in shuffled([n for n in state.workers if n not in without], state.rng):
        known = state.record(name, case)
        if not known.samples or not state.may_run(name, case):
            continue
        state.observer.stage(name, f"{case.name}: {state.suite.sustained_s:g} s without a pause")
        known.sustained = found = _stretch(state, name, case)
        if found.status is not Status.PASSED:
            words = f"{name}: no lasting time on {case.name}: {found.status.value}"
            state.observer.note(f"{words} ({found.reason})")


def _stretch(state: State, name: str, case: Case) -> Sustained:
    """One stretch of one entrant, and what it came to."""
    if state.facts.machine.has_gpu and state.suite.device == "gpu":
        if not state.judge.shares_memory:
            said = "device memory cannot be shared here, so its results could not be checked"
            return Sustained(status=Status.UNAVAILABLE, reason=said)
        if strangers := state.quiet.strangers(state.workers.values()):
            said = f"on the GPU, and none of this run: process {', '.join(strangers)}"
            return Sustained(status=Status.CONTENDED, reason=said)
    submitted = state.workers[name].entrant.kind is Kind.SUBMISSION
    if submitted and (overdrawn := state.budget.overdrawn(name)):
        return Sustained(status=Status.TIMED_OUT, reason=overdrawn)
    seconds = state.suite.sustained_s
    burst_ms = stats.median([s.latency_ms for s in state.record(name, case).samples])
    ring = max(RING, case.burst)
    if state.suite.device == "gpu" and ring * burst_ms < KEPT_MS:
        said = f"{ring} calls are over in {ring * burst_ms:.3g} ms: some left out would not show; "
        said += f"the case needs burst: {math.ceil(KEPT_MS / burst_ms) + 1}"
        return Sustained(status=Status.UNAVAILABLE, reason=said)
    calls = min(MOST_CALLS, max(FEWEST_CALLS, math.ceil(1e3 * seconds / burst_ms)))
    label = f"stretch/{case.name}/{state.rng.getrandbits(64):x}"
    probe = Probe(case, "normal", state.problem.kwargs(case))
    if state.suite.device == "gpu":
        seconds = max(seconds, calls * burst_ms / 1e3)
    question = Question(probe, label, ring, timed=True, stretch=Stretch(calls, seconds))
    timeout_s, spent_s = state.limits.burst_s + 3 * seconds, state.budget.spent_s[name]
    with bursts_kept(state, name) as lost:
        with Recorder(state.monitor) as recorder:
            reply = run_burst(state, name, question, timeout_s)
        woken = end_woken(state, case)
        if isinstance(reply, StretchReport) and reply.status is Status.PASSED and not woken:
            with blamed(state, name):
                return _figures(state, name, case, reply, recorder, burst_ms)
    beside = woken and name not in woken and reply  # others, who are ended: this comes to an end
    if beside and beside.status in (Status.PASSED, Status.UNSTABLE, Status.TIME_CLAIM_REJECTED):
        state.observer.note(f"{case.name}: {', '.join(woken)} ran beside {name}: once more")
        state.budget.spent_s[name] = spent_s
        return _stretch(state, name, case)
    return _failed(reply, lost)


def _figures(
    state: State, name: str, case: Case, reply: StretchReport, recorder: Recorder, burst_ms: float
) -> Sustained:
    """The figures of a stretch whose results were right."""
    on_gpu, flops = state.suite.device == "gpu", state.problem.flops(case)
    worst, limits = state.record(name, case).worst, state.problem.limits(case.dtype)
    if worst and limits.exact(worst) and reply.rel_l2 > 2 * limits.rel_l2:
        said = f"relative L2 {reply.rel_l2:.2g}, and {worst.rel_l2:.2g} in its bursts"
        return Sustained(status=Status.INCORRECT, reason=said)
    during = (reply.since_s, reply.until_s)
    power = mean_power(recorder.readings, *during) if on_gpu else None
    told = Sustained(
        status=Status.PASSED,
        calls=reply.calls,
        checked=reply.checked,
        latency_ms=reply.latency_ms,
        claimed_ms=reply.calls_ms[0],
        judge_pct=reply.judge_pct,
        pauses=reply.pauses,
        clock_mhz=mean_clock_mhz(recorder.readings, *during) if on_gpu else None,
        power_w=power.watts if power else None,
        energy_error_pct=power.error_pct if power else None,
    )
    return lasting(told, flops, burst_ms if on_gpu else 0.0, reply.early)


def _failed(reply: BurstReport | None, lost: list[tuple[Status, str]]) -> Sustained:
    """Why there is no figure."""
    if reply is not None and reply.status is not Status.PASSED:
        return Sustained(status=reply.status, reason=reply.message[:500])
    status, why = lost[0] if lost else (Status.HARNESS_ERROR, "its worker ended without a word")
    return Sustained(status=status, reason=why[:500])
