"""One burst on one worker, alone on the machine; a worker that fails is ended and its words are kept."""

from __future__ import annotations

import time
import traceback

from harness.bench import JudgeFailed, Seat
from harness.defences import Defence
from harness.errors import HarnessError
from harness.messages import BurstReport
from harness.registry import intact
from harness.schema import Case, Kind, Status
from harness.state import State

#: Endings of a worker after which it must be replaced before it can run another case.
DEADLY = frozenset(
    {Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.INVALID_SUBMISSION}
)
#: No row may stand under the hash of other bytes.
CHANGED = "the copy of its files that workers read was changed during the run: run it again"


def take_turn(
    state: State, name: str, case: Case, timeout_s: float, profile: bool = False, heat_ms: float = 0
) -> BurstReport | None:
    """One burst on one worker, within its budget; None if it could not be started."""
    if state.seats[name].entrant.kind is Kind.BASELINE:
        return _timed_burst(state, name, case, timeout_s, profile, heat_ms)
    seat, budget = state.seats[name], state.budget
    if overdrawn := budget.overdrawn(name):
        _dismiss(state, seat, Status.TIMED_OUT, overdrawn)
        return None
    timeout_s = min(timeout_s, state.limits.burst_s if seat.compiles_alone else timeout_s)
    timeout_s = budget.deadline_s(name, timeout_s)
    try:
        reply = _timed_burst(state, name, case, timeout_s, profile, heat_ms)
    except JudgeFailed:
        raise
    except Exception as cause:  # of ours, but with this one before us: nobody else pays for it
        traceback.print_exc()
        ours = isinstance(cause, HarnessError)  # a process could not be had, or the like
        status = Status.HARNESS_ERROR if ours else Status.BROKE_THE_RUN
        _dismiss(state, seat, status, f"in its turn: {cause!r}"[:500])
        return None
    if reply is None or reply.status is not Status.TIMED_OUT:
        return reply
    budget.hung.add(name)
    overdrawn = budget.overdrawn(name)
    return reply.model_copy(update={"message": overdrawn}) if overdrawn else reply


def _timed_burst(
    state: State, name: str, case: Case, timeout_s: float, profile: bool, heat_ms: float
) -> BurstReport | None:
    """One burst; its wall-clock is what `name` has spent."""
    begun = time.monotonic()
    try:
        return _burst(state, name, case, timeout_s, profile, heat_ms)
    finally:
        state.budget.spent_s[name] += time.monotonic() - begun


def _burst(
    state: State, name: str, case: Case, timeout_s: float, profile: bool, heat_ms: float
) -> BurstReport | None:
    """One burst on one worker, alone on the machine; None if it could not be started."""
    seat = state.seats[name]
    if not _seated(state, seat, case):
        return None
    assert seat.child
    seat.child.resume()
    reply = state.judge.burst(seat.label, timeout_s, profile, heat_ms)
    told_nothing = not reply.calls_ms  # a worker that fails says why and ends
    if reply.status in DEADLY or told_nothing or not seat.child.alive:
        reply = _bury(state, seat, reply)
        return None if reply.status is Status.PASSED else reply
    seat.child.pause()
    state.clean_up()
    return reply


def _dismiss(state: State, seat: Seat, status: Status, why: str) -> None:
    """No further turn for who has spent its budget, or broke us; rows of complete cases stay."""
    seat.end()
    if seat.attached:
        state.judge.detach(seat.label)
        seat.attached = False
    for case in state.suite.cases:
        if case.name not in state.done:
            state.record(seat.entrant.name, case).fail(status, why)


def _seated(state: State, seat: Seat, case: Case) -> bool:
    """Make sure the worker runs and has its buffers."""
    if seat.attached:
        return True
    if seat.child is None or not seat.child.alive:
        seat.start()
    assert seat.child
    failure = state.judge.attach(seat.label, seat.child, state.sizes, state.limits.import_s)
    seat.attached = True
    if failure is None and not intact(seat.entrant, seat.jail.source):
        failure = BurstReport(status=Status.INTERRUPTED, message=CHANGED)
    if failure is None:
        return True
    reply = _bury(state, seat, failure)
    if reply.status is not Status.PASSED:
        for each in state.suite.cases:  # what cannot be loaded fails every case, untried
            state.record(seat.entrant.name, each).fail(reply.status, reply.message)
    return False


def _bury(state: State, seat: Seat, reply: BurstReport) -> BurstReport:
    """End a failed worker and say what happened in the words its process left."""
    assert seat.child
    status, message = reply.status, reply.message
    ending = seat.child.ending(2.0 if status is Status.CRASHED else 0.0)
    seat.end()
    state.clean_up()
    if Defence.MISSING_IS_FAILURE in state.facts.off and ending == "exited with code 0":
        status = Status.PASSED
    state.judge.detach(seat.label)
    seat.attached = False
    if seat.killed_for:
        status, message = Status.OUT_OF_MEMORY, seat.killed_for
    elif status is Status.CRASHED and ending != "still running" and ":" not in message:
        message = f"{message}: {ending}"
    for (name, _), known in state.evidence.items():
        if name == seat.entrant.name and not known.log_tail:
            known.log_tail = seat.child.log_tail()
    return reply.model_copy(update={"status": status, "message": message})
