"""The campaign over an engine that lies, stutters and dies at random: every row once, whatever happens."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from benchmarks.null_unit import row
from harness.campaign.campaign import RETRIES, Campaign
from harness.campaign.executor import Told, gone
from harness.campaign.unit import Unit, to_text
from harness.schema import Kind, Result, Status
from tests.campaign.units import SUITE, Watched, units


class Chaos:
    """Runs a unit as a list of things it tells; loses, doubles and delays some of them."""

    places = window = 3

    def __init__(self, seed: int, deadly: float) -> None:
        self.rng, self.deadly = random.Random(seed), deadly
        self.streams: list[list[Told]] = []
        self.late: list[Told] = []  # of attempts that are over
        self.submitted: list[Unit] = []

    def submit(self, unit: Unit) -> None:
        self.submitted.append(unit)
        told, plain = [], json.loads(to_text(unit))
        for config in unit.cases:
            lines = [self.line(plain, entrant, config) for entrant in plain["entrants"]]
            self.rng.shuffle(lines)
            told += [Told(unit.label, {"op": "result", "line": line}) for line in lines]
        told += self.rng.sample(told, len(told) // 2)  # doubled
        dies = self.rng.random() < self.deadly
        kept = told[: self.rng.randrange(len(told) + 1)] if dies else told
        self.late += [t for t in told if t not in kept]
        why = "node lost" if dies else ""
        hello = Told(unit.label, {"op": "hello", "where": "here", "machine": {}})
        self.streams.append([hello, *kept, gone(unit.label, why)])

    def line(self, unit: dict, entrant: dict, config: str) -> str:
        failed = self.rng.random() < self.deadly / 4
        return row(unit, entrant, config, "HARNESS_ERROR" if failed else "UNSUPPORTED")

    def poll(self, timeout_s: float) -> list[Told]:
        stream = self.rng.choice(self.streams)
        told = [stream.pop(0) for _ in range(min(len(stream), self.rng.randrange(1, 4)))]
        self.streams = [s for s in self.streams if s]
        if self.late and self.rng.random() < 0.3:
            told.append(self.rng.choice(self.late))
        return told

    def cancel(self, label: str) -> None:
        """Nothing: this engine ends by itself."""

    def close(self) -> None:
        """Nothing is left."""
        assert not self.streams


@pytest.mark.parametrize("deadly", [0.0, 0.3, 0.6])
def test_exactly_once(deadly: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    monkeypatch.setattr("harness.campaign.campaign.DEAD_IN_A_ROW", 1000)
    names = [f"n{number}" for number in range(7)]
    for seed in range(40):
        engine, rows = Chaos(seed, deadly), []
        Campaign(engine, units(names, per_unit=seed % 3 + 1), rows.append, Watched()).run()
        mine = Counter((r.entry, r.config) for r in rows if r.kind is Kind.SUBMISSION)
        assert mine == Counter((name, case.name) for name in names for case in SUITE.cases), seed
        measured = [r for r in rows if r.status is Status.UNSUPPORTED]
        assert all(_has_baseline(r, rows) for r in measured), seed
        assert max(unit.attempt for unit in engine.submitted) <= RETRIES
        if not deadly:
            assert len(engine.submitted) == len(units(names, per_unit=seed % 3 + 1))


def _has_baseline(row: Result, rows: list[Result]) -> bool:
    """A baseline's row of the same case stands with it: of its run, or the last word where that died."""
    return any(
        (r.entry, r.config) == ("base", row.config)
        and (r.run == row.run or r.status is Status.HARNESS_ERROR)
        for r in rows
    )
