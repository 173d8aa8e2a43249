"""The live view of many units: queue, each GPU, what is done, failures by status, ETA."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.board.render.text import sanitize
from harness.campaign.campaign import View
from harness.cli.terminal import BAD, BUSY, DIM, GOOD, Terminal, duration
from harness.schema import Kind, Result, Status

SHOWN = 32  # running units in the picture; a rack may have hundreds


@dataclass
class Running:
    """One unit on one GPU."""

    names: tuple[str, ...]
    where: str
    since: float
    text: str = "starting"


class CampaignView(Terminal, View):
    """A Terminal that also follows units; it keeps counts, never rows."""

    def __init__(self, **asked: Any) -> None:
        super().__init__(**asked)  # as it is of one run
        self.total = self.done = 0
        self.statuses: Counter[str] = Counter()
        self.running: dict[str, Running] = {}
        self.began = time.monotonic()

    def planned(self, units: int, at_once: int) -> None:
        """This many units are to be done, so many at once."""
        self.total, self.began = units, time.monotonic()
        self._print(f"{units} units, {at_once} at once")

    def started(self, label: str, names: tuple[str, ...], where: str) -> None:
        """A unit runs."""
        self.running[label] = Running(names, sanitize(where, 80), time.monotonic())
        if not self.moving and not self.brief:
            self._print(f"{sanitize(where, 80)}: {_listed(names)}")

    def heard(self, label: str, message: Mapping[str, object]) -> None:
        """A unit told a stage, a block or what stopped it."""
        if (unit := self.running.get(label)) is None:
            return
        if message.get("op") == "block":
            told = f"{message.get('config', '')} {message.get('done')}/{message.get('total')}"
            unit.text = sanitize(told, 120)
        elif message.get("op") == "stage":
            unit.text = sanitize(f"{message.get('entry', '')}: {message.get('text', '')}", 120)

    def ended(self, label: str, why: str, again: int) -> None:
        """A unit's process is gone; `again` more were queued for what it left open."""
        self.running.pop(label, None)
        self.done += 1
        self.total += again
        if why:
            retry = f"; {again} queued again" if again else ""
            self._print(Text(f"unit {label} died: {sanitize(why, 300)}{retry}", style=BAD))
        if not self.moving and not self.brief:
            self._print(self.line())

    def verdict(self, result: Result) -> None:
        """Count every row of an entrant; print it, but not a baseline's for the hundredth time."""
        if result.kind is Kind.BASELINE:
            return
        self.statuses[result.status.value] += 1
        if not self.moving or result.status is not Status.PASSED:
            super().verdict(result)

    def tick(self) -> None:
        """Time passes; only a moving picture shows it, and what was told, however much that was."""
        if self.moving:
            self._show(self._picture())

    def line(self) -> str:
        """The whole state in one line."""
        failed = {k: n for k, n in self.statuses.items() if k != Status.PASSED.value}
        failures = ", ".join(f"{name} {count}" for name, count in sorted(failed.items()))
        queued = self.total - self.done - len(self.running)
        parts = [f"{self.done}/{self.total} units", f"{len(self.running)} running"]
        parts += [f"{max(queued, 0)} queued", f"{self.statuses[Status.PASSED.value]} passed"]
        parts += [failures] if failures else []
        parts += [f"{duration(self.eta_s())} left"] if 0 < self.done < self.total else []
        return " · ".join(parts)

    def eta_s(self) -> float:
        """What is left at the pace so far."""
        return (time.monotonic() - self.began) / max(self.done, 1) * (self.total - self.done)

    def _picture(self) -> RenderableType:
        bar = ProgressBar(max(self.total, 1), self.done, width=32, complete_style=BUSY)
        head = Table.grid(padding=(0, 2))
        bad = any(name != Status.PASSED.value for name in self.statuses)
        head.add_row(bar, Text(self.line(), style=BAD if bad else GOOD))
        rows = Table.grid(padding=(0, 2))
        now = time.monotonic()
        for unit in list(self.running.values())[:SHOWN]:
            told = Text(f"{unit.text}, {duration(now - unit.since)}", DIM)
            rows.add_row(Text(unit.where, style="bold"), _listed(unit.names), told)
        if len(self.running) > SHOWN:
            rows.add_row("", f"and {len(self.running) - SHOWN} more", "")
        return Group(head, rows)


def _listed(names: tuple[str, ...]) -> str:
    rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(sanitize(name, 60) for name in names[:2]) + rest
