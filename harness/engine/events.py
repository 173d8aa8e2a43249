"""What a run tells while it goes on."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.measure.stats import Interval
from harness.schema import Result, Status


@dataclass(frozen=True)
class Progress:
    """So many of a config's timed blocks are in; the speed-ups so far, by entry."""

    config: str
    done: int
    total: int
    eta_s: float
    intervals: Mapping[str, Interval]


class Observer:
    """Hears everything and says nothing; whoever wants to show an event takes its method."""

    def stage(self, entry: str, text: str) -> None:
        """An entrant reached a step."""

    def check(self, entry: str, config: str, status: Status, reason: str) -> None:
        """Correctness of one entrant on one case is known."""

    def block(self, now: Progress) -> None:
        """One more block is complete."""

    def verdict(self, result: Result) -> None:
        """One line of the record is final."""

    def note(self, text: str) -> None:
        """Something a person should know."""
