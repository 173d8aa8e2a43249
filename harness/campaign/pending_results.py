"""Every (entrant, case) recorded once: what a live unit still owes, and what of it may be kept.

Rows of one case are held until all of its unit have arrived, then written together, the baseline
first. So a run that dies leaves a case either whole or not at all, and a ratio never lies without
its baseline. Rows that say INTERRUPTED or HARNESS_ERROR are no verdict: they are written only when
nobody tries again.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from harness.board import record
from harness.campaign.unit import Unit, misfit
from harness.measure.audit import CONCLUDED, Asked, audited, named_now, overlong
from harness.measure.gpu_specs import PARTS, misnamed
from harness.measure.verdict import Evidence, asked_facts, conclude_case
from harness.process.text import shown
from harness.schema import Entrant, Machine, Result, Status

#: Our own faults; a later attempt may do better.
NO_WORD = frozenset({Status.INTERRUPTED, Status.HARNESS_ERROR})
#: Of these the verdict leans on who was timed beside them.
TIMED = CONCLUDED | {Status.CONTENDED}
MOST_REASON = 9_000  # letters, whoever told it: a fault's 8,000 (messages.py) and ours


def _of_kind(unit: Unit) -> Machine:
    """What a unit that never began was asked for: a GPU goes by its name, not by its folder."""
    known = (Machine(gpu=name) for part in PARTS for name in part.names)
    asked = Machine(gpu=unit.sku or "unknown") if unit.needs_gpu else Machine()
    return next((each for each in known if each.slug == unit.sku), asked)


class PendingResults:
    """One attempt at one unit: rows that came, cases that are written."""

    def __init__(self, unit: Unit, save: Callable[[Result], None]) -> None:
        self.unit = unit
        self.machine: Machine | None = None  # once it has said hello
        #: Its run's name and when that began, of then: ours, a node could name another's.
        self._named = ("", "")
        self.deadline = math.inf  # of its end, once its process has begun
        self.fault = ""  # what the unit itself said it died of
        self.cut = False  # it was stopped: what it tells now may be cut short
        self.nonsense = self.notes = 0  # lines that were none, and for people
        self._copies = 0  # of rows that came before
        self._save = save
        self._held: dict[str, dict[str, Result]] = {case: {} for case in unit.request.cases}
        self._owed = frozenset(entrant.name for entrant in unit.request.entrants)

    @property
    def open_cases(self) -> tuple[str, ...]:
        """Cases of which nothing is written yet."""
        return tuple(self._held)

    @property
    def excuse(self) -> str:
        """What the rows that are no verdict say, or an empty string."""
        held = (row for rows in self._held.values() for row in rows.values())
        return next((row.reason for row in held if row.status in NO_WORD), "")

    def meet(self, machine: Machine) -> str:
        """It runs, on `machine`, of which its rows must be; what is wrong with that, or ""."""
        if self.machine is not None:
            return f"it has said hello before, on {shown(self.machine.gpu)}"
        if lack := misfit(self.unit, machine) or misnamed(machine):
            return lack
        if machine.has_gpu and self.unit.request.suite.device != "gpu":
            return f"asked for no GPU, this is {shown(machine.gpu)}"
        self.machine, self._named = machine, named_now()
        return ""

    def take(self, result: Result) -> None:
        """One row came; the case is written once it is whole and every row of it is a verdict.

        Raises ValueError for a row nobody asked for, for more copies than rows, and where a row of
        the case contradicts itself; then none of them counts.
        """
        if self.machine is None:
            raise ValueError("it has not said hello")
        if result.entry not in self._owed or result.config not in self.unit.request.cases:
            of = f"{shown(result.entry)} on {shown(result.config)}"
            raise ValueError(f"nobody asked for it: {of}")
        if long := overlong(result, len(self._owed), self.unit.request.suite):
            raise ValueError(long)
        rows = self._held.get(result.config)
        if rows is None or result.entry in rows:
            self._copies += 1
            if self._copies > len(self._owed) * len(self.unit.request.cases):
                raise ValueError("more copies than there are rows")
            return
        run, date = self._named
        rows[result.entry] = result.model_copy(update={"run": run, "date": date})
        own = [row for name, row in rows.items() if name in self.unit.names]
        timed = any(row.status in TIMED for row in own)  # else who rides along was not
        owed = list(rows.values()) if timed else own
        if len(rows) == len(self._owed) and not any(row.status in NO_WORD for row in owed):
            again, faults = self._audited(result.config)
            if faults:
                rows.clear()
                raise ValueError(": ".join(faults[0]))
            rows.update(again)
            self._write(result.config)

    def settle(self, status: Status, reason: str) -> None:
        """Nobody will try again: write what came, and for the rest say how it ended."""
        for case in self.open_cases:
            rows, why = self._held[case], dict[str, str]()
            again, faults = self._audited(case)
            while faults:  # of what is left nothing may lean on what is not
                for name, each in faults:
                    why.setdefault(name, each)
                    rows.pop(name, None)
                again, faults = self._audited(case)
            for entrant in self.unit.request.entrants:
                name = entrant.name
                said = (Status.HARNESS_ERROR if name in why else status, why.get(name, reason))
                rows[name] = again.get(name) or self._unmeasured(entrant, case, *said)
        for case in self.open_cases:
            self._write(case)

    def _write(self, case: str) -> None:
        rows = self._held.pop(case)
        for row in sorted(rows.values(), key=lambda r: r.entry != self.unit.request.baseline):
            self._save(row)

    def _audited(self, case: str) -> tuple[dict[str, Result], list[tuple[str, str]]]:
        """The rows that are held of `case`, made again, and why they are no run's."""
        again, why = audited(self._held[case], self.asked(case), self.unit.request.suite, self.cut)
        return again, [*why, *record.misread(again)]

    def asked(self, case: str) -> Asked:
        """What rows of `case` must be of, whatever they say."""
        run, told = self.unit.request, self._held[case].values()
        commit, held = next((row.harness_commit for row in told), ""), f"judged/{run.sandbox}"
        return Asked(
            case=next(each for each in run.suite.cases if each.name == case),
            facts=asked_facts(run.suite, self.machine or Machine(), held, commit),
            entrants={entrant.name: entrant for entrant in run.entrants},
            baseline=run.baseline,
            control=run.control,
        )

    def _unmeasured(self, entrant: Entrant, case: str, status: Status, reason: str) -> Result:
        """A row for a case that no process came to tell about."""
        asked, (run, date) = self.asked(case), named_now()
        known = Evidence(entrant, asked.case, status=status, reason=reason[:MOST_REASON])
        machine = self.machine or _of_kind(self.unit)
        facts = replace(asked.facts, machine=machine, run=run, date=date)
        return next(conclude_case({entrant.name: known}, facts, asked.baseline, {}, (), ()))
