"""One burst on one worker, alone on the machine; a worker that fails is ended and its words are kept."""

from __future__ import annotations

from dataclasses import replace

from harness.bench import Reply, Seat
from harness.defences import Defence
from harness.registry import unchanged
from harness.schema import Case, Status
from harness.state import State

#: Endings of a worker after which it must be replaced before it can run another case.
DEADLY = frozenset(
    {Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.INVALID_SUBMISSION}
)
#: Saved between the hash and a load: no row may stand under the hash of other bytes.
CHANGED = "its files changed while they were being read: run it again"


def take_turn(
    state: State,
    name: str,
    case: Case,
    timeout_s: float,
    profile: bool = False,
    heat_ms: float = 0,
    compare: bool = False,
) -> Reply | None:
    """One burst on one worker, alone on the machine; None if it could not be started."""
    seat = state.seats[name]
    if not _seated(state, seat, case):
        return None
    assert seat.child
    seat.child.resume()
    reply = state.judge.burst(seat.label, timeout_s, profile, heat_ms, compare)
    told_nothing = not reply.calls_ms  # a worker that fails says why and ends
    if reply.status in DEADLY or told_nothing or not seat.child.alive:
        reply = _bury(state, seat, reply)
        return None if reply.status is Status.PASSED else reply
    seat.child.pause()
    state.clean_up()
    return reply


def _seated(state: State, seat: Seat, case: Case) -> bool:
    """Make sure the worker runs and has its buffers."""
    if seat.attached:
        return True
    if seat.child is None or not seat.child.alive:
        seat.start()
    assert seat.child
    failure = state.judge.attach(seat.label, seat.child, state.sizes, state.limits.import_s)
    seat.attached = True
    if failure is None and not unchanged(seat.entrant):
        failure = Reply(Status.INTERRUPTED, CHANGED, (), 0.0, None, ())
    if failure is None:
        return True
    reply = _bury(state, seat, failure)
    if reply.status is not Status.PASSED:
        for each in state.suite.cases:  # what cannot be loaded fails every case, untried
            state.record(seat.entrant.name, each).fail(reply.status, reply.message)
    return False


def _bury(state: State, seat: Seat, reply: Reply) -> Reply:
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
    return replace(reply, status=status, message=message)
