"""Run a suite: check every case, time it, turn evidence into records.

A case that is timed to its end gets its row, also where the run is ended. A failure ends one
entrant's case, never the run. If the judge fails in an entrant's turn, that entrant leaves with
BROKE_THE_RUN, a verdict that takes the place of older ones (or HARNESS_ERROR, where the machine had
no memory or disk left), and session.py begins the open cases again without it. In nobody's turn it
is ours: HARNESS_ERROR.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.engine.adaptive import AdaptiveRun
from harness.engine.correctness import check_cases
from harness.engine.processes.judge_client import JudgeFailed
from harness.engine.run_state import State
from harness.engine.sustain import sustain
from harness.engine.timing import name_kernels, time_case
from harness.errors import HarnessError
from harness.measure.plan import hidden_blocks
from harness.measure.verdict import NOBODY_LEFT, Evidence, conclude_case
from harness.schema import Case, Status


class BrokenRun(HarnessError):
    """The judge failed in the turn of `entrant`, whose rows are written; `open_cases` are left."""

    def __init__(self, entrant: str, open_cases: Sequence[str], why: str) -> None:
        said = f"the judge failed in the turn of {entrant}: {why}"
        super().__init__(said, f"run {entrant} alone")
        self.entrant, self.open_cases = entrant, tuple(open_cases)


@dataclass
class Run(State):
    """`execute` returns when every case has its status."""

    revealed: dict[str, tuple[str, str]] = field(default_factory=dict)  # timed case → its secret

    def execute(self) -> None:
        """Check all cases, time them, say which kernels ran, write the rows."""
        with self.nothing_lost():
            check_cases(self, self.suite.cases)
            checked = self._rotate_secret()
            # rows of who failed a check reveal the secret of the checks: nothing else replays them
            for known in self.evidence.values():
                known.told = checked if known.mismatch else known.told
            if self.only_check:  # who passed has no row, because a row has a time
                for case in self.suite.cases:
                    failed = [n for n in self.submissions() if not self.may_run(n, case)]
                    self._finish(case, *checked, failed)
                return
            self._time_cases()
            for case in self.suite.cases:
                name_kernels(self, case, [n for n in self.workers if self.may_run(n, case)])
            for case in self.suite.cases:  # behind the last turn: who breaks the judge has no row
                self._finish(case, *self.revealed[case.name])

    def _time_cases(self) -> None:
        """One by one or, where the rule wants it, all together; then shapes that nobody foresaw."""
        open_cases = [case for case in self.suite.cases if not self.nobody_left(case)]
        for name in self.submissions() if open_cases else ():
            self.observer.stage(name, "time")
        if self.rule.adaptive and open_cases:
            AdaptiveRun(self).run()
            self._reveal(self.suite.cases)
        else:
            for case in self.suite.cases:
                if not self.failed_fast() and not self.nobody_left(case):
                    time_case(self, case)
                    sustain(self, case)
                self._reveal([case])
        if open_cases and self.suite.hidden and not self.failed_fast():
            self._time_hidden()

    def _time_hidden(self) -> None:
        """Shapes that follow from the secret in force, checked and timed in fewer blocks.

        Drawn when the suite's own are over: until its first call on one nobody knows it, no
        builder is told, and their secret is revealed with their rows.
        """
        cases = self.judge.hidden_cases(self.suite.cases, self.suite.hidden)
        asked = {"cases": (*self.suite.cases, *cases), "blocks": hidden_blocks(self.suite)}
        official, self.suite = self.suite.cases, self.suite.model_copy(update=asked)
        for name in self.workers:
            self._left_out(name, [self.record(name, case) for case in official], cases)
        check_cases(self, cases, probes=False)
        for case in cases:
            if not self.nobody_left(case):
                time_case(self, case)
        self._reveal(cases)

    def _left_out(self, name: str, before: Sequence[Evidence], cases: Sequence[Case]) -> None:
        """Who failed one of the suite's own cases, or could not start, is tried on no other."""
        ended = [k for k in before if k.status not in (None, Status.UNSUPPORTED)]
        alone = (Status.INTERRUPTED, NOBODY_LEFT)
        failed = [k for k in ended if (k.status, k.reason) != alone]
        for case in cases if failed else ():
            status, reason = Status.INTERRUPTED, "not measured: it failed on the suite's own shapes"
            if failed[0].status is Status.UNAVAILABLE:
                status, reason = failed[0].status, failed[0].reason
            self.record(name, case).fail(status, reason)

    @contextlib.contextmanager
    def nothing_lost(self) -> Iterator[None]:
        """On Ctrl-C or a fault of ours every open case gets its row; what was measured is kept."""
        try:
            yield
        except KeyboardInterrupt:
            self._abandon(Status.INTERRUPTED, "stopped by Ctrl-C")
            raise
        except JudgeFailed as cause:
            if name := self._entrant_called(cause.worker):
                status = Status.HARNESS_ERROR if cause.lacks else Status.BROKE_THE_RUN
                raise self._leaves(name, status, cause.message.splitlines()[0]) from cause
            self._abandon(Status.HARNESS_ERROR, cause.message)
            raise
        except Exception as cause:
            ours = cause.message if isinstance(cause, HarnessError) else repr(cause)
            self._abandon(Status.HARNESS_ERROR, ours)
            raise

    def _reveal(self, cases: Sequence[Case]) -> None:
        """These cases are timed: the secret of their inputs is told with their rows."""
        self.revealed |= dict.fromkeys([case.name for case in cases], self._rotate_secret())

    def _rotate_secret(self) -> tuple[str, str]:
        """Tell the old secret, commit to a new one; (commitment, secret) of the old."""
        return self.judge.commitment, self.judge.reveal()

    def _entrant_called(self, label: str) -> str:
        """Whose worker the judge calls `label`, if the run can go on without him."""
        needed = (self.roles.baseline, self.roles.control, self.roles.null)
        mine = (name for name, worker in self.workers.items() if worker.label == label)
        return next((name for name in mine if name not in needed), "")

    def _leaves(self, name: str, status: Status, why: str) -> BrokenRun:
        """Write the rows of `name`, in whose turn the judge failed; nobody else's case is over."""
        left = (case for case in self.suite.cases if case.name not in self.done)
        open_cases = [case for case in left if not case.hidden]  # of which nobody tells a secret
        for case in open_cases:
            self.record(name, case).fail(status, f"in its turn {why}")
            self._finish(case, self.judge.commitment, "", [name])
        self.done |= {case.name for case in open_cases}
        return BrokenRun(name, [case.name for case in open_cases], why)

    def _finish(
        self, case: Case, commitment: str, secret: str, names: Sequence[str] | None = None
    ) -> None:
        """Turn the evidence of one case, of `names` or of everybody, into records; write them."""
        facts = self.facts.for_case(commitment, secret)
        if self.quiet.unlocked:
            facts = replace(facts, integrity=facts.integrity.replace("judged", "unlocked"))
        known = self.known(case)
        asked = set(known if names is None else names) - self.hidden
        for name in asked:
            known[name].log_tail = known[name].log_tail or self.workers[name].printed()
        around = (self.null_gaps_ms.get(case.name, []), self.telemetry.get(case.name, []))
        for result in conclude_case(known, facts, self.roles.baseline, self.trusted(case), *around):
            if result.entry in asked:
                self.save(result)
                self.observer.verdict(result)
        if names is None:
            self.done.add(case.name)

    def _abandon(self, status: Status, reason: str) -> None:
        """Every case not timed to its end gets its status; samples already taken are kept."""
        for case in self.suite.cases:
            if case.name in self.done:
                continue
            if case.name not in self.revealed:
                for name in self.workers:
                    self.record(name, case).fail(status, reason)
                    if case.hidden:  # nobody could draw it again: its secret is never told
                        self.record(name, case).samples.clear()
            self._finish(case, *self.revealed.get(case.name, (self.judge.commitment, "")))
