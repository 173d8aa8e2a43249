"""All that one run holds: who takes part, on what, and what is known so far."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harness.engine.events import Observer
from harness.engine.guards.budget import Budget
from harness.engine.guards.quiet import Quiet
from harness.engine.processes.judge_client import JudgeClient
from harness.engine.processes.worker_process import WorkerProcess
from harness.measure.machine import version_of
from harness.measure.stopping import FIXED, StoppingRule
from harness.measure.telemetry import Monitor
from harness.measure.verdict import NOBODY_LEFT, Evidence, RunFacts, Trusted, trusted_of
from harness.problems import Problem
from harness.problems.base import Probe
from harness.problems.shapes import room_for
from harness.schema import BLAMELESS, Case, Error, Kind, Limits, Result, Status, Suite, Telemetry

#: Fewest results of a stretch that are kept at once. Who leaves a call out must make all but one of
#: them before it can tell of the next: with two of them it could make every second call.
RING = 6
FAILED_FAST = "-x ended the run at its first failure"


@dataclass
class Roles:
    """Who the run leans on: the headline baseline, the trusted control, the null kernel."""

    baseline: str
    control: str
    null: str


@dataclass
class State:
    """One run over one suite on one machine."""

    suite: Suite
    problem: Problem
    workers: dict[str, WorkerProcess]
    roles: Roles
    judge: JudgeClient
    facts: RunFacts
    monitor: Monitor
    save: Callable[[Result], None]
    observer: Observer
    rng: random.Random = field(default_factory=random.SystemRandom)
    rule: StoppingRule = FIXED
    fail_fast: bool = False  # the first failure of a submission ends the run
    only_check: bool = False  # nobody is timed
    hidden: frozenset[str] = frozenset()  # ran, but nobody asked for a row of it
    evidence: dict[tuple[str, str], Evidence] = field(default_factory=dict)
    telemetry: dict[str, list[Telemetry]] = field(default_factory=dict)
    null_gaps_ms: dict[str, list[float]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)  # cases that every submission has been asked
    #: (entrant, probe's question) → the error of an answer that was right
    answered: dict[tuple[str, object], Error | None] = field(default_factory=dict)
    #: (entrant, question) whose inputs the judge has drawn while its kernel was compiled
    drawn_ahead: tuple[str, object] | None = None
    budget: Budget = field(init=False)
    clean_up: Callable[[], object] = field(default=lambda: None)  # after every turn
    quiet: Quiet = field(default_factory=Quiet)
    last_on_turn: str = ""
    contended: dict[str, int] = field(default_factory=dict)  # case → blocks that do not count
    woken: dict[str, int] = field(default_factory=dict)  # the same, for who ran while stopped
    loads_again: int = 2  # that may fail once more for want of memory or cores, at everybody's cost

    def __post_init__(self) -> None:
        """Nobody has spent anything."""
        self.budget = Budget(self.suite.limits, self.roles.control)

    @property
    def limits(self) -> Limits:
        """Deadlines of this suite."""
        return self.suite.limits

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the shared input and output arenas, which fit every burst of this run."""
        probes = wanted_probes(self.suite, self.problem, self.workers.values())
        return arena_sizes(self.problem, probes)

    def record(self, name: str, case: Case) -> Evidence:
        """The evidence of one (entrant, case)."""
        key = (name, case.name)
        if key not in self.evidence:
            entrant = self.workers[name].entrant
            package = entrant.manifest.version_of
            version = f"{package} {version_of(package)}" if package else ""
            self.evidence[key] = Evidence(entrant, case, version=version)
        return self.evidence[key]

    def known(self, case: Case) -> dict[str, Evidence]:
        """The evidence of everybody on `case`; the null kernel is nobody."""
        return {n: self.record(n, case) for n in self.workers if n != self.roles.null}

    def trusted(self, case: Case) -> Trusted:
        """Against whose samples everybody's clocks are held on `case`, the control's first."""
        return trusted_of(self.known(case), self.roles.control)

    def pids(self) -> frozenset[int]:
        """The processes of this run, with all that they started."""
        workers = (pid for worker in self.workers.values() for pid in worker.pids())
        return frozenset((*workers, *self.judge.child.pids()))

    def submissions(self) -> list[str]:
        """Who is judged here; the others are there to be compared with."""
        every = self.workers.items()
        return [name for name, worker in every if worker.entrant.kind is Kind.SUBMISSION]

    def nobody_left(self, case: Case) -> bool:
        """Whether every submission failed `case` or does not claim it: nobody waits for baselines.

        Says so in the records that are still open. False where no submission was asked for.
        """
        names = self.submissions()
        left = not names or any(self.may_run(name, case) for name in names)
        if not left:
            self.fail_all(case, Status.INTERRUPTED, NOBODY_LEFT)
        return not left

    def failed_fast(self) -> bool:
        """With -x: whether a submission has failed; what has too few blocks then says why."""
        ends = (self.record(n, c).status for n in self.submissions() for c in self.suite.cases)
        failed = self.fail_fast and any(end is not None and end not in BLAMELESS for end in ends)
        for case in self.suite.cases if failed else ():
            if not (self.only_check and case.name in self.checked):  # who passed there is done
                self.fail_all(case, Status.INTERRUPTED, FAILED_FAST)
        return failed

    def fail_all(self, case: Case, status: Status, why: str) -> None:
        """Nobody's time says anything on `case`, and it is no entrant's doing."""
        for name in self.workers:
            self.record(name, case).fail(status, why)

    def may_run(self, name: str, case: Case) -> bool:
        """Whether `name` has not failed and claims this case; says why not in the record."""
        known = self.record(name, case)
        refusal = self.workers[name].entrant.manifest.claims.refusal(case)
        if refusal and known.status is None:
            known.fail(Status.UNSUPPORTED, refusal)
        return known.status is None


def wanted_probes(suite: Suite, problem: Problem, entrants: Iterable[WorkerProcess]) -> list[Probe]:
    """All that a run may send through the shared buffers: the cases and their probes.

    Who refuses a case is not asked about it, and its claims make no room for others to fill.
    """
    cases = list(suite.cases)
    if suite.sustained_s:
        cases += [case.model_copy(update={"burst": max(RING, case.burst)}) for case in suite.cases]
    probes = [Probe(case) for case in cases]
    for case in suite.cases:
        for claims in [worker.entrant.manifest.claims for worker in entrants]:
            if not claims.refusal(case):
                probes += problem.probes(case, claims)
    return probes


def arena_sizes(problem: Problem, probes: Sequence[Probe]) -> tuple[int, int]:
    """Bytes of the shared input and output arenas that fit the burst of every one of `probes`."""
    return (
        max(p.case.burst * room_for(problem.inputs(p.case)) for p in probes),
        max(p.case.burst * room_for(problem.outputs(p.case, p.kwargs)) for p in probes),
    )
