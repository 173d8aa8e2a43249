"""What a run tells while it goes on, and one who does not listen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.measure.stats import Interval
from harness.schema import Result, Status


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
        intervals: Mapping[str, Interval],
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
        intervals: Mapping[str, Interval],
    ) -> None:
        """Nothing."""

    def verdict(self, result: Result) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
