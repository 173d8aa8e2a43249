"""Run a plan: start the processes, give each entrant its turns, turn evidence into records.

check   every case once with the whole float64 reference, then the probes each entrant's claims invite
time    case by case: blocks in random order, every output of every burst verified
record  a case is written the moment it is complete: nothing measured is lost later

A failure ends one entrant's case, never the run. The judge's failure is ours: HARNESS_ERROR.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness import stats
from harness.bench import JudgeClient, JudgeFailed, Reply, Seat
from harness.clock import cross_examine
from harness.defences import Defence
from harness.plan import Block, plan_case, shuffled
from harness.problems import Problem
from harness.problems.base import Probe
from harness.schema import Case, Limits, Result, Sample, Status, Suite, Telemetry
from harness.telemetry import Monitor
from harness.verdict import Evidence, RunFacts, conclude

#: Endings of a worker after which it must be replaced before it can run another case.
DEADLY = frozenset(
    {Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.INVALID_SUBMISSION}
)
ADAPTIVE_BUDGET_S = 0.5  # of a loop that stops when its time is up; only in an ablation
EXTRA_SHARE = 0.5  # disturbed blocks are repeated, up to this share of the plan


class Observer(Protocol):
    """What a run tells while it goes on; the terminal and the tests are two of them."""

    def stage(self, entry: str, text: str) -> None:
        """An entrant reached a step."""

    def check(self, entry: str, config: str, status: Status, reason: str) -> None:
        """Correctness of one entrant on one case is known."""

    def block(
        self,
        config: str,
        done: int,
        total: int,
        eta_s: float,
        intervals: Mapping[str, stats.Interval],
    ) -> None:
        """One more block is complete."""

    def verdict(self, result: Result) -> None:
        """One line of the record is final."""

    def note(self, text: str) -> None:
        """Something a person should know."""


class Silent:
    """An observer that says nothing: benchmarks and the self-test read the results themselves."""

    def stage(self, entry: str, text: str) -> None:
        """Nothing."""

    def check(self, entry: str, config: str, status: Status, reason: str) -> None:
        """Nothing."""

    def block(
        self,
        config: str,
        done: int,
        total: int,
        eta_s: float,
        intervals: Mapping[str, stats.Interval],
    ) -> None:
        """Nothing."""

    def verdict(self, result: Result) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


@dataclass
class Roles:
    """Who the run leans on: the headline baseline, the trusted pace, the null kernel."""

    against: str
    pace: str
    null: str


@dataclass
class Run:
    """One run over one suite on one machine; `execute` returns when every case has its status."""

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
    hidden: frozenset[str] = frozenset()  # ran, but nobody asked for a row of it
    evidence: dict[tuple[str, str], Evidence] = field(default_factory=dict)
    telemetry: dict[str, list[Telemetry]] = field(default_factory=dict)
    null_gaps_ms: dict[str, list[float]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    clean_up: Callable[[], object] = field(default=lambda: None)  # after every turn

    @property
    def limits(self) -> Limits:
        """Deadlines of this suite."""
        return self.suite.limits

    def execute(self) -> None:
        """Check all cases, then time them."""
        with self.nothing_lost():
            for case in self.suite.cases:
                self._check_case(case)
            self._rotate_secret()
            for case in self.suite.cases:
                self._time_case(case)
                self._finish(case)

    @contextlib.contextmanager
    def nothing_lost(self) -> Iterator[None]:
        """On Ctrl-C or a failing judge every open case gets its row; what was measured is kept."""
        try:
            yield
        except KeyboardInterrupt:
            self._abandon(Status.INTERRUPTED, "stopped by Ctrl-C")
            raise
        except JudgeFailed as cause:
            self._abandon(Status.HARNESS_ERROR, cause.message)
            raise

    def record(self, name: str, case: Case) -> Evidence:
        """The evidence of one (entrant, case)."""
        key = (name, case.name)
        if key not in self.evidence:
            self.evidence[key] = Evidence(self.seats[name].entrant, case)
        return self.evidence[key]

    def pids(self) -> frozenset[int]:
        """The processes of this run."""
        workers = {seat.child.pid for seat in self.seats.values() if seat.child}
        return frozenset(workers | {self.judge.child.pid})

    # ------------------------------------------------------------------ check

    def _check_case(self, case: Case) -> None:
        """The whole float64 reference on the timed shape, then the probes."""
        names = [
            name for name in self.seats if name != self.roles.null and self._may_run(name, case)
        ]
        main = Probe(case, "normal", self.problem.kwargs(case))
        self._verified_burst(main, f"check/{case.name}", names, whole=True)
        by_claims: dict[str, list[str]] = {}
        for name in names:
            claims = self.seats[name].entrant.manifest.claims.model_dump_json()
            by_claims.setdefault(claims, []).append(name)
        for group in by_claims.values():
            claims_of = self.seats[group[0]].entrant.manifest.claims
            probes = self.problem.probes(case, claims_of)
            for number, probe in enumerate([] if Defence.STRESS in self.facts.off else probes):
                self._verified_burst(probe, f"probe/{case.name}/{number}", group, whole=True)
        for name in names:
            known = self.record(name, case)
            self.observer.check(name, case.name, known.status or Status.PASSED, known.reason)

    def _may_run(self, name: str, case: Case) -> bool:
        """Whether `name` has not failed and claims this case; says why not in the record."""
        known = self.record(name, case)
        refusal = self.seats[name].entrant.manifest.claims.refusal(case)
        if refusal and known.status is None:
            known.fail(Status.UNSUPPORTED, refusal)
        return known.status is None

    def _verified_burst(self, probe: Probe, label: str, names: Sequence[str], whole: bool) -> None:
        case = next(c for c in self.suite.cases if label.split("/")[1] == c.name)
        alive = [name for name in names if self.record(name, case).status is None]
        if not alive:
            return
        self.judge.inputs(probe, label, probe.case.burst, whole)
        for name in alive:
            reply = self._turn(name, case, self.limits.first_call_s)
            if reply is None:
                continue
            known = self.record(name, case)
            if reply.status is not Status.PASSED:
                known.fail(reply.status, f"{reply.message} ({probe.label})")
            elif reply.error:
                known.saw(reply.error)

    # ------------------------------------------------------------------ time

    def _time_case(self, case: Case) -> None:
        """All blocks of one case, the disturbed ones again, then who ran which kernels."""
        names = [name for name in self.seats if self._may_run(name, case)]
        blocks = plan_case(self.suite, case, self.problem, names, self.rng)
        if Defence.STRESS in self.facts.off:
            blocks = [block for block in blocks if block.index is not None]
        started = time.monotonic()
        timed = 0
        for number, block in enumerate(blocks):
            self._run_block(case, block)
            timed += block.timed
            hurried = Defence.FIXED_COUNTS in self.facts.off
            if hurried and timed and time.monotonic() - started > ADAPTIVE_BUDGET_S:
                break
            eta_s = (time.monotonic() - started) / (number + 1) * (len(blocks) - number - 1)
            self.observer.block(case.name, timed, self.suite.blocks, eta_s, self._intervals(case))
        self._repeat_disturbed(case, names)
        self._name_kernels(case, names)

    def _run_block(self, case: Case, block: Block) -> None:
        """One set of secret inputs, every entrant's turn on it."""
        alive = [name for name in block.order if self.record(name, case).status is None]
        label = f"block/{case.name}/{block.index}/{self.rng.getrandbits(64):x}"
        self.judge.inputs(block.probe, label, case.burst, whole=False)
        for name in alive:
            heat_ms = 0 if name == self.roles.null else self.suite.heat_ms
            reply = self._turn(name, case, self.limits.burst_s, heat_ms=heat_ms)
            if reply is not None:
                self._take(name, case, block, reply)
        if block.timed:
            snapshot = self.monitor.snapshot(self.pids())
            self.telemetry.setdefault(case.name, []).append(snapshot)

    def _take(self, name: str, case: Case, block: Block, reply: Reply) -> None:
        """Keep one burst's sample, or its failure."""
        if name == self.roles.null:
            if block.timed:
                self.null_gaps_ms.setdefault(case.name, []).append(
                    reply.t2_ms - sum(reply.calls_ms)
                )
            return
        known = self.record(name, case)
        if reply.status is not Status.PASSED:
            known.fail(reply.status, f"{reply.message} ({block.probe.label})")
            return
        if reply.error:
            known.saw(reply.error)
        if min(reply.calls_ms, default=0.0) <= 0.0:
            known.fail(Status.TIME_CLAIM_REJECTED, "claims that a call took no time at all")
            return
        if block.timed:
            assert block.index is not None
            known.samples.append(
                Sample(block=block.index, calls_ms=reply.calls_ms, t2_ms=reply.t2_ms)
            )

    def _repeat_disturbed(self, case: Case, names: Sequence[str]) -> None:
        """Blocks in which the second clock was disturbed run again, for everybody."""
        pace = self.record(self.roles.pace, case).samples
        late = 0
        for name in names:
            samples = self.record(name, case).samples
            marked = cross_examine(samples, pace, (), self.facts.rules).samples
            late = max(late, sum(sample.late for sample in marked))
        again = min(late, int(self.suite.blocks * EXTRA_SHARE))
        normal = Probe(case, "normal", self.problem.kwargs(case))
        for extra in range(again):
            order = shuffled(names, self.rng)
            self._run_block(case, Block(normal, order, self.suite.blocks + extra))

    def _name_kernels(self, case: Case, names: Sequence[str]) -> None:
        """One verified, untimed burst under the profiler: which kernels really ran."""
        if not self.facts.machine.has_gpu:
            return
        self.judge.inputs(
            Probe(case, "normal", self.problem.kwargs(case)), f"names/{case.name}", 1, whole=False
        )
        for name in names:
            known = self.record(name, case)
            if known.status is None and name != self.roles.null:
                reply = self._turn(name, case, self.limits.first_call_s, profile=True)
                if reply is not None:
                    known.kernels = reply.kernels

    def _intervals(self, case: Case) -> dict[str, stats.Interval]:
        base = {s.block: s.latency_ms for s in self.record(self.roles.against, case).samples}
        found = {}
        for name in self.seats:
            if name in (self.roles.null, self.roles.against) or name in self.hidden:
                continue
            mine = {s.block: s.latency_ms for s in self.record(name, case).samples}
            interval = stats.speedup(base, mine) if len(mine) > 2 and len(base) > 2 else None
            if interval:
                found[name] = interval
        return found

    # ------------------------------------------------------------------ turns

    def _turn(
        self, name: str, case: Case, timeout_s: float, profile: bool = False, heat_ms: float = 0
    ) -> Reply | None:
        """One burst on one worker, alone on the machine; None if it could not be started."""
        seat = self.seats[name]
        if not self._seated(seat, case):
            return None
        assert seat.child
        seat.child.resume()
        reply = self.judge.burst(seat.label, timeout_s, profile, heat_ms)
        told_nothing = not reply.calls_ms  # a worker that fails says why and ends
        if reply.status in DEADLY or told_nothing or not seat.child.alive:
            reply = self._bury(seat, reply)
            return None if reply.status is Status.PASSED else reply
        seat.child.pause()
        self.clean_up()
        return reply

    def _seated(self, seat: Seat, case: Case) -> bool:
        """Make sure the worker runs and has its buffers."""
        if seat.attached:
            return True
        if seat.child is None or not seat.child.alive:
            seat.start()
        assert seat.child
        failure = self.judge.attach(seat.label, seat.child, self.sizes, self.limits.import_s)
        seat.attached = True
        if failure is None:
            return True
        reply = self._bury(seat, failure)
        if reply.status is not Status.PASSED:
            for each in self.suite.cases:  # what cannot be loaded fails every case, untried
                self.record(seat.entrant.name, each).fail(reply.status, reply.message)
        return False

    def _bury(self, seat: Seat, reply: Reply) -> Reply:
        """End a failed worker and say what happened in the words its process left."""
        assert seat.child
        status, message = reply.status, reply.message
        ending = seat.child.ending(2.0 if status is Status.CRASHED else 0.0)
        seat.end()
        self.clean_up()
        if Defence.MISSING_IS_FAILURE in self.facts.off and ending == "exited with code 0":
            status = Status.PASSED
        self.judge.detach(seat.label)
        seat.attached = False
        if seat.killed_for:
            status, message = Status.OUT_OF_MEMORY, seat.killed_for
        elif status is Status.CRASHED and ending != "still running" and ":" not in message:
            message = f"{message}: {ending}"
        for (name, _), known in self.evidence.items():
            if name == seat.entrant.name and not known.log_tail:
                known.log_tail = seat.child.log_tail()
        return Reply(status, message, reply.calls_ms, reply.t2_ms, reply.error, reply.kernels)

    # ------------------------------------------------------------------ end

    def _rotate_secret(self) -> tuple[str, str]:
        """Tell the old secret, commit to a new one; (commitment, secret) of the old."""
        commitment = self.judge.commitment
        return commitment, self.judge.reveal()

    def _finish(self, case: Case, told: bool = True) -> None:
        """Turn the evidence of one case into records and write them."""
        commitment, secret = self._rotate_secret() if told else (self.judge.commitment, "")
        against = self.record(self.roles.against, case)
        pace = self.record(self.roles.pace, case)
        facts = self.facts.for_case(commitment, secret)
        gaps = self.null_gaps_ms.get(case.name, [])
        for name in self.seats:
            if name == self.roles.null or name in self.hidden:
                continue
            known = self.record(name, case)
            headline = (self.roles.against, against.samples)
            readings = self.telemetry.get(case.name, [])
            result = conclude(known, facts, headline, pace.samples, gaps, readings)
            self.save(result)
            self.observer.verdict(result)
        self.done.add(case.name)

    def _abandon(self, status: Status, reason: str) -> None:
        """Every case that is not finished gets its status; samples already taken are kept."""
        for case in self.suite.cases:
            if case.name in self.done:
                continue
            for name in self.seats:
                self.record(name, case).fail(status, reason)
            self._finish(case, told=False)


def wanted_cases(suite: Suite, problem: Problem, entrants: Sequence[Seat]) -> list[Case]:
    """Every shape that a run may send through the shared buffers: the cases and all probes."""
    cases = list(suite.cases)
    for case in suite.cases:
        for seat in entrants:
            cases += [probe.case for probe in problem.probes(case, seat.entrant.manifest.claims)]
    return cases
