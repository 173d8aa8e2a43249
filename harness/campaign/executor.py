"""The interface of an engine: submit units, poll what they tell, cancel. Nothing else is asked of one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from harness.campaign.unit import Unit
from harness.errors import UnavailableError

Message = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """Something that one unit told; `op` says what.

    hello   it runs: where, machine
    stage, block, note   for the view
    result  one line of the record
    fault   what stopped it, if it could still say so
    end     all is told
    gone    its process has ended; the engine's own word, the last of every submitted unit
    """

    label: str
    message: Message

    @property
    def op(self) -> str:
        """What kind of message."""
        return str(self.message.get("op", ""))


class Engine(Protocol):
    """Places units on GPUs. Every unit submitted is told `gone` exactly once, last."""

    places: int  # units that run at once
    window: int  # submitted units that keep it busy; more only wait

    def submit(self, unit: Unit) -> None:
        """Run `unit` when there is room; returns at once."""

    def poll(self, timeout_s: float) -> list[Told]:
        """What was told since, waiting at most `timeout_s` for the first of it."""

    def cancel(self, label: str) -> None:
        """End one unit politely: it records what it has, then it is `gone`."""

    def close(self) -> None:
        """End all that still runs."""


def gone(label: str, why: str = "", at: str = "") -> Told:
    """The last word about one unit; `why` is empty if it ended by itself and well, `at` a place."""
    return Told(label, {"op": "gone", "why": why, "at": at})


def package(name: str, extra: str) -> UnavailableError:
    """An optional package that an engine needs is not here."""
    return UnavailableError(
        f"UNAVAILABLE: Python package '{name}' is not installed", f"pip install '.[{extra}]'"
    )


def parse_line(label: str, line: bytes | str) -> Told:
    """One line of a child's stdout."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        return Told(label, {"op": "note", "text": f"not a message: {line[:200]!r}"})
    return Told(label, message)
