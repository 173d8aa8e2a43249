"""Units for tests: entrants that exist only by name, a suite of two cases, and what a campaign made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.campaign.campaign import Campaign
from harness.campaign.executor import Engine
from harness.campaign.unit import Unit, plan_units
from harness.catalog.request import Request
from harness.schema import Case, Entrant, Kind, Machine, Manifest, Result, Suite

NULL = "benchmarks.null_unit"
CASES = tuple(Case(name=n, batch=1, heads=1, seqlen=32, headdim=16) for n in ("one", "two"))
SUITE = Suite(name="tiny", device="cpu", cases=CASES, against="base", baselines=("base",))


def entrant(name: str, kind: Kind = Kind.SUBMISSION) -> Entrant:
    return Entrant(
        name=name,
        kind=kind,
        folder=Path("/nowhere"),
        manifest=Manifest(name=name),
        source_sha256=name.encode().hex(),
    )


def request(names: Sequence[str], suite: Suite = SUITE, base: bool = True) -> Request:
    entrants = [entrant(name) for name in names]
    entrants += [entrant("base", Kind.BASELINE)] if base else []
    return Request(suite=suite, machine=Machine(), entrants=tuple(entrants), baseline="base")


def units(names: Sequence[str], per_unit: int = 1, suite: Suite = SUITE) -> list[Unit]:
    return plan_units(request(names, suite), per_unit)


class Watched:
    """A view that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.deaths: list[str] = []
        self.where: list[str] = []
        self.total = 0

    def planned(self, units: int, at_once: int) -> None:
        self.total = units

    def started(self, label: str, names: tuple[str, ...], where: str) -> None:
        self.where.append(where)

    def heard(self, label: str, message: Mapping[str, object]) -> None:
        pass

    def ended(self, label: str, why: str, again: int) -> None:
        if why:
            self.deaths.append(f"{label}: {why}")

    def verdict(self, result: Result) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self) -> None:
        pass


def conclude(engine: Engine, todo: Sequence[Unit]) -> tuple[list[Result], Watched]:
    """Run `todo` to its end."""
    rows: list[Result] = []
    view = Watched()
    Campaign(engine, todo, rows.append, view).run()
    return rows, view


def counted(rows: Sequence[Result]) -> Counter[tuple[str, str, str]]:
    """(entry, config, status) → how often; baselines left out."""
    return Counter(
        (row.entry, row.config, row.status.value) for row in rows if row.kind is Kind.SUBMISSION
    )


def once(names: Sequence[str], status: str = "UNSUPPORTED") -> Counter[tuple[str, str, str]]:
    """Every (entry, case) exactly once."""
    return Counter((name, case.name, status) for name in names for case in CASES)
