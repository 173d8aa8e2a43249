"""Every (entrant, case) recorded once: what a live unit still owes, and what of it may be kept.

Rows of one case are held until all of its unit have arrived, then written together, the baseline
first. So a run that dies leaves a case either whole or not at all, and a ratio never lies without
its baseline. Rows that say INTERRUPTED or HARNESS_ERROR are no verdict: they are written only when
nobody tries again.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable

from harness import PROTOCOL
from harness.board.rank import HELD
from harness.campaign.unit import Unit, misfit
from harness.measure.audit import unlike_a_run
from harness.measure.gpu_specs import misnamed
from harness.process.text import shown
from harness.schema import Entrant, Machine, Result, Status

#: Our own faults; a later attempt may do better.
NO_WORD = frozenset({Status.INTERRUPTED, Status.HARNESS_ERROR})
DAY_S = 86_400.0  # by which the clock of a node may be wrong


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


class PendingResults:
    """One attempt at one unit: rows that came, cases that are written."""

    def __init__(
        self, unit: Unit, save: Callable[[Result], None], runs: set[str] | None = None
    ) -> None:
        """`runs`: names of those recorded or told, to which this unit's are added."""
        self.unit, self._runs = unit, set() if runs is None else runs
        self._told: dict[str, str] = {}  # name of a run of this unit → its date
        self.machine: Machine | None = None
        self.fault = ""  # what the unit itself said it died of
        self.cut = False  # it was stopped: what it tells now may be cut short
        self.nonsense = self.notes = 0  # lines that were none, and for people
        self._began = time.time()
        self._save = save
        self._held: dict[str, dict[str, Result]] = {case: {} for case in unit.cases}
        self._owed = frozenset(entrant.name for entrant in unit.entrants)

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
        if machine.has_gpu and self.unit.suite.device != "gpu":
            return f"asked for no GPU, this is {shown(machine.gpu)}"
        self.machine = machine
        return ""

    def take(self, result: Result) -> None:
        """One row came; the case is written once it is whole and every row of it is a verdict.

        Raises ValueError where a row of it contradicts itself; then none of them counts.
        """
        rows = self._held.get(result.config)
        if rows is None or result.entry not in self._owed or not self._is_asked(result):
            return  # a second copy, or a row nobody asked for
        # Who breaks a run leaves it, and the others begin another.
        if result.run not in self._runs and len(self._told) < len(self._owed):
            self._told[result.run] = result.date
            self._runs.add(result.run)
        if self._told.get(result.run) != result.date:
            raise ValueError(f"run {shown(result.run)} is another's, or one more than it can be")
        rows.setdefault(result.entry, result)
        if len(rows) == len(self._owed) and not any(r.status in NO_WORD for r in rows.values()):
            if faults := [f"{r.entry}: {why}" for r in rows.values() for why in self._faults(r)]:
                rows.clear()
                raise ValueError(faults[0])
            self._write(result.config)

    def settle(self, status: Status, reason: str) -> None:
        """Nobody will try again: write what came, and for the rest say how it ended."""
        first = sorted(self.unit.entrants, key=lambda each: each.name != self.unit.baseline)
        for case, entrant in itertools.product(self.open_cases, first):
            row = self._held[case].get(entrant.name)
            faults = self._faults(row) if row else [reason]
            if faults:
                said = status if row is None else Status.HARNESS_ERROR
                row = self._unmeasured(entrant, case, said, faults[0][:500])
                self._held[case][entrant.name] = row
        for case in self.open_cases:
            self._write(case)

    def _write(self, case: str) -> None:
        rows = self._held.pop(case)
        for row in sorted(rows.values(), key=lambda r: r.entry != self.unit.baseline):
            self._save(row)

    def _faults(self, result: Result) -> list[str]:
        """Everything in which a row of a whole case contradicts itself or its baseline."""
        rows = self._held[result.config]
        base, entrant = rows.get(self.unit.baseline), self._entrant(result.entry)
        faults = unlike_a_run(result, base, self.unit.suite, entrant, rows, self.cut)
        if result.speedup and result.speedup.against != self.unit.baseline:
            faults.append(f"its speed-up is not over {self.unit.baseline}")
        return faults

    def _entrant(self, name: str) -> Entrant:
        return next(each for each in self.unit.entrants if each.name == name)

    def _is_asked(self, result: Result) -> bool:
        """The row is of this unit's files, suite, walls; of today, of the machine it runs on."""
        suite, machine = self.unit.suite, self.machine
        entrant = self._entrant(result.entry)
        manifest = entrant.manifest
        told = (result.source_sha256, result.kind, result.author, result.language)
        asked = (entrant.source_sha256, entrant.kind, manifest.author, manifest.language)
        days = [_day(self._began - DAY_S), _day(time.time() + DAY_S)]
        return (
            told == asked
            and result.case == next(c for c in suite.cases if c.name == result.config)
            and (result.suite, result.suite_sha256) == (suite.name, suite.sha256)
            and (result.problem, result.protocol) == (suite.problem, PROTOCOL)
            and (result.machine, result.gpu) == (machine, machine.gpu if machine else "")
            and result.integrity in {f"{word}/{self.unit.sandbox}" for word in HELD}
            and result.stopping is None  # no unit may stop early
            and (result.sustained is None or suite.sustained_s > 0)
            and days[0] <= result.date[:10] <= days[1]
        )

    def _unmeasured(self, entrant: Entrant, case: str, status: Status, reason: str) -> Result:
        """A row for a case that no process came to tell about."""
        unit, now = self.unit, time.gmtime()
        machine = self.machine or Machine(gpu=unit.sku or "unknown")
        return Result(
            run=f"{time.strftime('%Y%m%dT%H%M%SZ', now)}-{secrets.token_hex(3)}",
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
            entry=entrant.name,
            kind=entrant.kind,
            language=entrant.manifest.language,
            author=entrant.manifest.author,
            suite=unit.suite.name,
            config=case,
            status=status,
            reason=reason,
            gpu=machine.gpu,
            case=next(c for c in unit.suite.cases if c.name == case),
            source_sha256=entrant.source_sha256,
            suite_sha256=unit.suite.sha256,
            protocol=PROTOCOL,
            machine=machine,
        )
