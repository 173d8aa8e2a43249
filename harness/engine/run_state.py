"""All that one run holds: who takes part, on what, and what is known so far. No process is talked to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.engine.events import Observer
from harness.engine.guards.budget import Budget
from harness.engine.guards.quiet import Quiet
from harness.engine.worker_process import JudgeClient, Seat
from harness.measure.stopping import FIXED, Rule
from harness.measure.telemetry import Monitor
from harness.measure.verdict import Evidence, RunFacts
from harness.problems import Problem
from harness.schema import Case, Limits, Result, Status, Suite, Telemetry


@dataclass
class Roles:
    """Who the run leans on: the headline baseline, the trusted pace, the null kernel."""

    against: str
    pace: str
    null: str


@dataclass
class State:
    """One run over one suite on one machine."""

    suite: Suite
    problem: Problem
    seats: dict[str, Seat]
    roles: Roles
    judge: JudgeClient
    facts: RunFacts
    sizes: tuple[int, int]
    monitor: Monitor
    save: Callable[[Result], None]
    observer: Observer
    rng: random.Random = field(default_factory=random.SystemRandom)
    rule: Rule = FIXED
    hidden: frozenset[str] = frozenset()  # ran, but nobody asked for a row of it
    evidence: dict[tuple[str, str], Evidence] = field(default_factory=dict)
    telemetry: dict[str, list[Telemetry]] = field(default_factory=dict)
    null_gaps_ms: dict[str, list[float]] = field(default_factory=dict)
    null_energy_j: dict[str, dict[int, float]] = field(default_factory=dict)  # case → block → J
    done: set[str] = field(default_factory=set)
    budget: Budget = field(init=False)
    clean_up: Callable[[], object] = field(default=lambda: None)  # after every turn
    quiet: Quiet = field(default_factory=Quiet)
    last_on_turn: str = ""
    contended: dict[str, int] = field(default_factory=dict)  # case → blocks that do not count
    woken: dict[str, int] = field(default_factory=dict)  # the same, for who ran while stopped

    def __post_init__(self) -> None:
        """Nobody has spent anything."""
        self.budget = Budget(self.suite.limits, self.roles.pace)

    @property
    def limits(self) -> Limits:
        """Deadlines of this suite."""
        return self.suite.limits

    def record(self, name: str, case: Case) -> Evidence:
        """The evidence of one (entrant, case)."""
        key = (name, case.name)
        if key not in self.evidence:
            self.evidence[key] = Evidence(self.seats[name].entrant, case)
        return self.evidence[key]

    def pids(self) -> frozenset[int]:
        """The processes of this run, with all that they started."""
        workers = [seat.child for seat in self.seats.values() if seat.child]
        return frozenset(pid for child in (*workers, self.judge.child) for pid in child.pids())

    def may_run(self, name: str, case: Case) -> bool:
        """Whether `name` has not failed and claims this case; says why not in the record."""
        known = self.record(name, case)
        refusal = self.seats[name].entrant.manifest.claims.refusal(case)
        if refusal and known.status is None:
            known.fail(Status.UNSUPPORTED, refusal)
        return known.status is None
