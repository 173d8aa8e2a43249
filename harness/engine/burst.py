"""One burst on one worker, alone on the machine; a failing worker is ended, its words kept."""

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from harness.engine.guards.quiet import Rest
from harness.engine.processes.judge_client import PLAIN, BurstOptions, JudgeFailed
from harness.engine.processes.worker_process import WorkerProcess
from harness.engine.run_state import State
from harness.errors import HarnessError
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.process.sandbox import usage
from harness.schema import Case, Kind, Status

#: Of the judge's watch kernel (harness/judge/alone.py): far above its own, far below a turn of
#: another process.
MOST_GAP_MS = 0.5
CLEARED_UP_S = 2.0  # the driver takes a tenth for a process that has ended, more for much memory


@dataclass(frozen=True)
class Stretch:
    """So many calls back to back, and for about how long."""

    calls: int
    seconds: float


@dataclass(frozen=True)
class Question:
    """What every entrant of a block or check is asked, each with values of its own."""

    probe: Probe
    label: str  # of the block or check; an entrant's own values follow from it, its name and chance
    calls: int
    whole: bool = False  # compare all of each output with float64
    timed: bool = False  # the judge watches that it is alone on the GPU while it works this out
    replayed: bool = False  # the label is the whole one of a burst that has been
    stretch: Stretch | None = None  # on windows into these inputs; None: one burst


def run_burst(
    state: State, name: str, question: Question, timeout_s: float, options: BurstOptions = PLAIN
) -> BurstReport | None:
    """One burst on one worker, within its budget; None if it could not be started."""
    worker, budget = state.workers[name], state.budget
    burst = partial(_burst, state, name, question, options)
    if worker.entrant.kind is Kind.BASELINE:
        with budget.spending(name):
            return burst(timeout_s=timeout_s)
    if overdrawn := budget.overdrawn(name):
        _dismiss(state, worker, Status.TIMED_OUT, overdrawn)
        return None
    timeout_s = min(timeout_s, state.limits.burst_s if worker.compiles_alone else timeout_s)
    timeout_s = budget.deadline_s(name, timeout_s)
    reply = None
    with blamed(state, name), budget.spending(name):
        reply = burst(timeout_s=timeout_s)
    if reply is None or reply.status is not Status.TIMED_OUT:
        return reply
    budget.hung.add(name)
    overdrawn = budget.overdrawn(name)
    return reply.model_copy(update={"message": overdrawn}) if overdrawn else reply


@contextlib.contextmanager
def blamed(state: State, name: str) -> Iterator[None]:
    """A fault of ours with the submission `name` before us ends it: nobody else pays for it."""
    worker = state.workers[name]
    try:
        yield
    except Exception as cause:
        if isinstance(cause, JudgeFailed) or worker.entrant.kind is Kind.BASELINE:
            raise
        traceback.print_exc()
        ours = isinstance(cause, HarnessError)  # a process could not be had, or the like
        status = Status.HARNESS_ERROR if ours else Status.BROKE_THE_RUN
        _dismiss(state, worker, status, f"in its turn: {cause!r}"[:500])


def _burst(
    state: State, name: str, question: Question, options: BurstOptions, timeout_s: float
) -> BurstReport | None:
    """One burst on one worker, alone on the machine; None if it could not be started."""
    worker = state.workers[name]
    ahead = question.whole and not worker.attached
    if ahead and state.drawn_ahead != (name, question):  # of a check: drawn while it loads
        _ask(state, name, question)
    state.drawn_ahead = None  # nobody is asked the same values twice
    if not _attached(state, worker):
        return None
    if not ahead and _disturbed(state, name, question):
        if disturbed := _end_disturber(state, name, question):
            return disturbed
        if not _attached(state, worker):
            return None
    if not state.quiet.release(worker):
        worker.leave(state.judge, state.clean_up)  # somebody else made it unusable
        if not _attached(state, worker):
            return None
        state.quiet.release(worker)
    state.last_on_turn = name
    reply, rest = _on_turn(state, worker, question, options, timeout_s)
    if not worker.goes_on(reply):
        reply = reap(state, worker, reply)
        return None if reply.status is Status.PASSED else reply
    if options.profile:
        worker.child.pause()  # the driver locks no process with a profiler; all clocks have ended
        return reply
    if rest.fault:
        return reap(state, worker, left_running(rest))
    state.clean_up()
    return reply.model_copy(update={"rest_ms": reply.rest_ms + rest.waited_ms})


def _on_turn(
    state: State, worker: WorkerProcess, question: Question, options: BurstOptions, timeout_s: float
) -> tuple[BurstReport, Rest]:
    """What the judge says of its calls, and how it came to rest: it is locked as soon as it may be.

    That is while the judge verifies: what it did meanwhile would heat the chip, and count nowhere.
    """
    rests: list[Rest] = []

    def hold() -> None:
        rests.append(state.quiet.hold(worker))

    name, overdue = worker.entrant.name, partial(end_overdue, state, worker)
    strangers = [w for w in state.workers.values() if w.entrant.kind is Kind.SUBMISSION]
    paying = partial(state.budget.spending, instead_of=name)
    with WorkerProcess.none_loads(strangers, paying):  # who may burn all cores meanwhile
        reply: BurstReport
        if question.stretch:
            asked = (question.stretch.calls, question.stretch.seconds)
            reply = state.judge.stretch(worker.label, *asked, timeout_s, overdue, hold)
        else:
            kernels_s = state.limits.burst_s if timeout_s > state.limits.burst_s else None
            over = (lambda: None) if options.profile else hold
            told = (worker.label, timeout_s, overdue, options, kernels_s, over)
            reply = state.judge.burst(*told)
        if worker.goes_on(reply) and not (rests or options.profile):
            hold()  # it needs a core to answer the lock in time
    return reply, rests[0] if rests else Rest()


def left_running(rest: Rest) -> BurstReport:
    """What becomes of a turn behind which the GPU was not given back."""
    return BurstReport(status=Status.LEFT_WORK_RUNNING, message=rest.fault)


def end_woken(state: State, case: Case) -> list[str]:
    """End every entrant that ran or ended in another's turn, though it was stopped; their names."""
    found = []
    for name, worker in state.workers.items():
        watched = worker.attached and worker.entrant.kind is Kind.SUBMISSION
        if fault := worker.child.ran_paused() if watched else "":
            status = Status.LEFT_WORK_RUNNING if worker.alive else Status.CRASHED
            reply = reap(state, worker, BurstReport(status=status, message=fault))
            state.record(name, case).fail(reply.status, reply.message)
            found.append(name)
    return found


def _end_disturber(state: State, name: str, question: Question) -> BurstReport | None:
    """Something runs though all are locked: end workers until nothing does, likeliest first.

    Whose end brings quiet has left work running, and whoever was ended before it starts afresh.
    Returns what this means for `name`, whose turn it is: None if it may take it.
    """
    if not _disturbed(state, name, question):
        return None
    fault = "its GPU work, or that of an ended process of it, outlived the driver's lock"
    alive = [name for name, worker in state.workers.items() if worker.attached]
    house = {n for n in alive if state.workers[n].entrant.kind is Kind.BASELINE}
    # who was on turn last first, the house's own at the end
    for suspect in sorted(alive, key=lambda n: (n != state.last_on_turn, n in house)):
        state.workers[suspect].leave(state.judge, state.clean_up)
        if not _disturbed(state, name, question):
            reply = BurstReport(status=Status.LEFT_WORK_RUNNING, message=fault)
            if suspect == name:
                return reply
            state.record(suspect, question.probe.case).fail(reply.status, fault)
            return None
    state.quiet.others |= state.quiet.ownerless()  # strangers, as it turns out
    why = "something beside this run computes on the GPU, and NVML does not tell what"
    return BurstReport(status=Status.CONTENDED, message=why)


def _disturbed(state: State, name: str, question: Question) -> bool:
    """Ask; does something compute meanwhile, or keep what a process that has ended had there?"""
    dead = state.quiet.ownerless() if question.timed else set()
    time.sleep(CLEARED_UP_S if dead else 0.0)
    gap_ms = _ask(state, name, question)
    return gap_ms > MOST_GAP_MS or bool(dead and dead & state.quiet.ownerless())


def settle(state: State) -> None:
    """Before anybody is on the clock: whoever still loads does so to its end and comes to rest.

    Who has failed everywhere leaves: its memory and its processes are in nobody's way.
    """
    for name, worker in state.workers.items():
        if worker.alive and not any(state.may_run(name, case) for case in state.suite.cases):
            worker.leave(state.judge, state.clean_up)
        elif worker.alive and not worker.attached:
            with state.budget.spending(name):
                _attached(state, worker)
    state.clean_up()


def end_overdue(state: State, worker: WorkerProcess, deadline_s: float) -> None:
    """End a worker in whose turn the judge has not come back to its own deadlines."""
    worker.end_for(Status.TIMED_OUT, f"its turn was not over after {deadline_s:.0f} s")
    state.quiet.rescue_judge()


def draw_ahead(state: State, name: str, question: Question) -> None:
    """Have the inputs of the first check drawn before its entrant can be asked."""
    _ask(state, name, question)
    state.drawn_ahead = (name, question)


def _ask(state: State, name: str, question: Question) -> float:
    """Have the judge draw inputs that nobody else meets: no entrant's answers help another.

    The null kernel answers nothing, so nothing is worked out for it, nor for a stretch, whose calls
    get other inputs than these. Everybody is held meanwhile: returns the longest time in ms that
    the GPU was with somebody else all the same, 0 where nobody watches.
    """
    state.drawn_ahead = None
    label = question.label if question.replayed else own_label(state, name, question)
    answered = name != state.roles.null and not question.stretch
    watched = question.timed and state.quiet.watches
    asked = (question.probe, label, question.calls, question.whole, answered, watched)
    return state.judge.inputs(*asked, state.workers[name].label)


def own_label(state: State, name: str, question: Question) -> str:
    """What the values of `name` follow from, and nobody else's."""
    return f"{question.label}/{name}/{state.rng.getrandbits(64):x}"


def _dismiss(state: State, worker: WorkerProcess, status: Status, why: str) -> None:
    """No further turn, and no row with a time, for who has spent its budget or broke us."""
    worker.leave(state.judge, state.clean_up)
    for case in state.suite.cases:
        state.record(worker.entrant.name, case).fail(status, why)


def _attached(state: State, worker: WorkerProcess) -> bool:
    """Make sure the worker runs, has its buffers, and is at rest."""
    if worker.attached:
        return True
    overdue = partial(end_overdue, state, worker)
    name, import_s, begun_s = worker.entrant.name, state.limits.import_s, time.monotonic()
    attach = partial(worker.attach, state.judge, state.sizes, import_s, overdue)
    failure = attach()
    first = worker.starts <= 1 and worker.entrant.kind is Kind.SUBMISSION
    late = failure and failure.status is Status.TIMED_OUT
    waited_s = usage.starved_s(worker.pids()) + worker.child.held_s if late else 0.0
    lacked = waited_s > usage.STARVED_SHARE * import_s
    full = failure and failure.status is Status.OUT_OF_MEMORY and not worker.ended_for
    if (lacked or full) and state.loads_again:
        # once more, while all others that load, and had taken time or memory, are stopped
        worker.leave(state.judge, state.clean_up)
        paying = partial(state.budget.spending, instead_of="" if first else name)
        with WorkerProcess.none_loads(state.workers.values(), paying):
            worker.start()
            failure = attach()
        state.loads_again -= bool(failure)
    if first:  # no turn: it has a deadline of its own, and others load beside it
        state.budget.spent_s[name] -= time.monotonic() - begun_s
    if failure is None:
        rest = state.quiet.hold(worker, loaded=True)
        if not rest.fault:
            return True
        failure = left_running(rest)
    reply = reap(state, worker, failure)
    if reply.status is not Status.PASSED:
        for each in state.suite.cases:  # what cannot be loaded fails every case, untried
            state.record(name, each).fail(reply.status, reply.message)
    return False


def reap(state: State, worker: WorkerProcess, reply: BurstReport) -> BurstReport:
    """End a failed worker; what its process printed goes with every case of it."""
    found = worker.reap(state.judge, state.clean_up, reply)
    for (name, _), known in state.evidence.items():
        if name == worker.entrant.name and not known.log_tail:
            known.log_tail = worker.child.log_tail()
    return found


@contextlib.contextmanager
def bursts_kept(state: State, name: str) -> Iterator[list[tuple[Status, str]]]:
    """Failures of `name` inside the block are told of what was asked, not of cases that are timed.

    Yields what was taken back, once the block is over.
    """
    taken: list[tuple[Status, str]] = []
    mine = [known for (who, _), known in state.evidence.items() if who == name]
    whole = [known for known in mine if known.status is None and known.samples]
    try:
        yield taken
    finally:
        for known in whole:
            if known.status is not None:
                taken.append((known.status, known.reason))
                known.status, known.reason, known.mismatch = None, "", None
