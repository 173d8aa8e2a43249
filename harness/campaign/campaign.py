"""Carry units through an engine until every one of them is recorded.

An attempt that dies (node, process, judge) is an infrastructure fault: its open cases go back to
the queue, entrant by entrant, at most `RETRIES` times. What a submission does to itself comes back
as a row with a status and is never tried again.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from harness.board import record
from harness.campaign.executor import MOST_NONSENSE, Engine, Told
from harness.campaign.pending_results import PendingResults
from harness.campaign.unit import Unit
from harness.engine.events import Observer
from harness.errors import GpuUnhealthyError
from harness.process.text import shown
from harness.schema import Machine, Result, Status

RETRIES = 2
DEAD_IN_A_ROW = 12  # attempts without one that ends well: the fault is not the units'
MOST_NOTES = 1000  # of one attempt
ALONE = "alone"  # key of a unit that holds the baseline only, to see whether anything ends well
POLL_S = 0.5
LAST_WORDS_S = 45.0  # for cancelled units to tell what they have


class View(Observer):
    """What a campaign shows, beside verdicts and notes."""

    def planned(self, units: int, at_once: int) -> None:
        """This many units are to be done, so many at once."""

    def started(self, label: str, names: tuple[str, ...], where: str) -> None:
        """A unit runs."""

    def heard(self, label: str, message: Mapping[str, object]) -> None:
        """A unit told a stage or a block."""

    def ended(self, label: str, why: str, again: int) -> None:
        """A unit's process is gone; `again` more units were queued for what it left open."""

    def tick(self) -> None:
        """Time passes."""


class Campaign:
    """All units of one command; holds the live ones and nothing of those that are done."""

    def __init__(
        self,
        engine: Engine,
        units: Iterable[Unit],
        save: Callable[[Result], None],
        view: View,
        builds_ahead: int = 0,
    ) -> None:
        self.engine, self.view, self._store = engine, view, save
        self.queue = deque(units)
        self.live: dict[str, PendingResults] = {}
        self.builds: set[str] = set()  # labels of builders at work
        self.built: set[str] = set()  # queued units whose builder was sent
        self.ending = ""  # of these the one that was told to end last
        self.builds_ahead = builds_ahead
        self.lost = 0
        self.dead_in_a_row = 0
        self.alone = 0  # how often the baseline was tried by itself

    def run(self) -> int:
        """Until every unit is recorded; how many of them died on every attempt.

        On Ctrl-C those that began get their rows.
        """
        self.view.planned(len(self.queue), self.engine.places)
        try:
            while self._fill():
                for told in self.engine.poll(POLL_S):
                    self._hear(told)
                self._end_the_hanging()
                self.view.tick()
        except BaseException:
            self._stop()
            raise
        finally:
            self.engine.close()
        return self.lost

    # ------------------------------------------------------------------ the queue

    def _fill(self) -> bool:
        """Keep the engine's window full; false when nothing is left to do."""
        while len(self.live) < self.engine.window and not self._waits and (unit := self._next()):
            self.live[unit.label] = PendingResults(unit, self._save)
            self.engine.submit(unit)
        self._build_ahead()
        return bool(self.live or (self.queue and self.builds))

    @property
    def _waits(self) -> bool:
        """Whether many have died and others live: how these end says whose fault it is."""
        return self.dead_in_a_row >= DEAD_IN_A_ROW and any(a.machine for a in self.live.values())

    def _build_ahead(self) -> None:
        """Send the builders of the units that come next, each once."""
        for unit in islice(self.queue, 2 * self.engine.window if self.builds_ahead else 0):
            if len(self.builds) < self.builds_ahead and unit.label not in self.built:
                ahead = unit.model_copy(update={"task": "build"})
                self.built.add(unit.label)
                self.builds.add(ahead.label)
                self.engine.submit(ahead)

    def _next(self) -> Unit | None:
        """The first unit whose builder is not at work; if all are, that of the first is ended."""
        ahead = islice(self.queue, 2 * self.engine.window)
        unit = next((u for u in ahead if f"{u.label}b" not in self.builds), None)
        if unit:
            self.queue.remove(unit)
            self.built.discard(unit.label)
        elif self.queue and self.ending != (label := f"{self.queue[0].label}b"):
            self.ending = label
            self.engine.cancel(label)
        return unit

    # ------------------------------------------------------------------ what units tell

    def _hear(self, told: Told) -> None:
        if told.label in self.builds:
            if told.op == "gone":
                self.builds.discard(told.label)
            return
        if (account := self.live.get(told.label)) is None:
            return  # an attempt that is over
        if told.op in {"began", "hello"}:
            account.deadline = min(account.deadline, time.monotonic() + account.unit.limit_s)
        if told.op == "hello":
            if wrong := account.meet(Machine.model_validate(told.message["machine"])):
                self._misunderstood(account, wrong)
                return
            where = str(told.message.get("where", ""))
            self.view.started(told.label, account.unit.names, where)
        elif told.op == "result":
            self._take(account, str(told.message["line"]))
        elif told.op == "note" and account.notes < MOST_NOTES:
            account.notes += 1
            self.view.note(f"{told.label}: {told.message.get('text', '')}")
        elif told.op == "fault":
            self.view.heard(told.label, told.message)
            account.fault = str(told.message.get("why", ""))
        elif told.op == "gone":
            self._close(account, str(told.message["why"]), str(told.message["at"]))
        elif told.op == "nonsense":
            self._misunderstood(account, str(told.message["why"]))
        else:
            self.view.heard(told.label, told.message)

    def _take(self, account: PendingResults, line: str) -> None:
        try:
            account.take(record.parse(line.encode()))
        except ValueError as error:
            self._misunderstood(account, f"a row that cannot be read: {error}")

    def _misunderstood(self, account: PendingResults, why: str) -> None:
        """Told, up to a number; who says more of it than that is broken, and ended."""
        account.nonsense += 1
        if account.nonsense < MOST_NONSENSE:
            self.view.note(f"{account.unit.label}: {why}")
        elif account.nonsense == MOST_NONSENSE:
            account.fault = f"{MOST_NONSENSE} lines that nobody understands, the last: {why}"
            self.engine.cancel(account.unit.label)

    def _close(self, account: PendingResults, why: str, at: str) -> None:
        """An attempt is over: what it left open is tried again, or gets its last word."""
        unit = account.unit
        del self.live[unit.label]
        again: list[Unit] = []
        why = account.fault or why
        if unit.key == ALONE:
            self.view.ended(unit.label, why, 1)
            if account.open_cases:
                said = f"{DEAD_IN_A_ROW} attempts in a row died, the last of: "
                hint = "python run.py doctor, then the same command with --resume"
                raise GpuUnhealthyError(f"{said}{shown(why or account.excuse)}", hint)
            return
        if account.open_cases:
            why = why or account.excuse or "it ended without its rows"
            self.dead_in_a_row += 1
            if unit.attempt < RETRIES:
                again = list(unit.split(account.open_cases, at))
                self.queue.extend(again)  # last: a place that is free at once may be the fault
            else:
                tries = f"{unit.attempt + 1} attempts, none came to its end; the last: {why}"
                account.settle(Status.HARNESS_ERROR, tries)
                self.lost += 1
        else:
            self.dead_in_a_row = 0
        self.view.ended(unit.label, why, len(again))
        if self.dead_in_a_row >= DEAD_IN_A_ROW and not self._waits:
            self._try_alone(unit, why)

    def _try_alone(self, unit: Unit, why: str) -> None:
        """The control in a unit of its own: only if that dies too, no submission is to blame."""
        self.dead_in_a_row = 0
        self.alone += 1
        name, cases = unit.request.control, unit.request.cases[:1]
        control = tuple(each for each in unit.beside if each.name == name)
        run = replace(unit.request, entrants=control, baseline=name, cases=cases)
        fresh = {"key": ALONE, "attempt": self.alone, "request": run, "avoid": ()}
        alone = unit.model_copy(update=fresh)
        self.live[alone.label] = PendingResults(alone, lambda row: None)
        self.engine.submit(alone)

    def _end_the_hanging(self) -> None:
        for label, account in self.live.items():
            if time.monotonic() > account.deadline:
                account.fault = f"no end after {account.unit.limit_s:.0f} s"
                account.deadline = math.inf  # once
                self.engine.cancel(label)

    # ------------------------------------------------------------------ the end

    def _save(self, result: Result) -> None:
        try:
            self._store(result)
            self.view.verdict(result)
        except ValueError as ours:  # no row is taken that could not be written and shown
            raise RuntimeError(f"{result.entry} on {result.config}: {ours}") from ours

    def _stop(self) -> None:
        """Cancel what runs, hear its last words, and leave no unit that began without its rows."""
        left = len(self.queue)
        with contextlib.suppress(Exception):  # an engine that broke: what was told is kept
            self._last_words()
        begun = [account for account in self.live.values() if account.machine]
        left += len(self.live) - len(begun)
        with contextlib.ExitStack() as settled:  # each by itself: a disk may be full for one alone
            for account in reversed(begun):
                settled.callback(account.settle, Status.INTERRUPTED, "the campaign was stopped")
        if left:
            self.view.note(f"{left} units not begun; the same command with --resume goes on")

    def _last_words(self) -> None:
        for cut in self.live.values():
            cut.cut = True
        for label in [*self.live, *self.builds]:
            self.engine.cancel(label)
        deadline = time.monotonic() + LAST_WORDS_S
        ended: set[str] = set()
        while ended < set(self.live) and time.monotonic() < deadline:
            for told in self.engine.poll(POLL_S):
                if (account := self.live.get(told.label)) is None:
                    continue
                if told.op == "hello":
                    account.meet(Machine.model_validate(told.message["machine"]))
                elif told.op == "result":
                    self._take(account, str(told.message["line"]))
                elif told.op == "gone":
                    ended.add(told.label)
