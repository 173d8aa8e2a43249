"""Which lines of the results count: of every entrant the newest verdict of its newest source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from harness.schema import Status

#: Endings that are no verdict: an older one of the same source stays.
NO_VERDICT = frozenset(
    {Status.UNAVAILABLE, Status.UNSTABLE, Status.CONTENDED}
    | {Status.INTERRUPTED, Status.HARNESS_ERROR}
)


class Dated(Protocol):
    """What choosing the newest needs to know of a line."""

    @property
    def gpu(self) -> str:
        """Marketing name of the GPU, or cpu."""

    @property
    def suite_sha256(self) -> str:
        """What was asked."""

    @property
    def protocol(self) -> int:
        """How it was measured."""

    @property
    def entry(self) -> str:
        """Who."""

    @property
    def config(self) -> str:
        """On which shape."""

    @property
    def source_sha256(self) -> str:
        """With which source."""

    @property
    def status(self) -> Status | str:
        """How it ended."""

    @property
    def date(self) -> str:
        """When, ISO 8601."""

    @property
    def run(self) -> str:
        """In which run."""


AnyDated = TypeVar("AnyDated", bound=Dated)


def newest(lines: Iterable[AnyDated]) -> list[AnyDated]:
    """Of each (gpu, suite, protocol, entry, config) the newest verdict of the newest source."""
    source: dict[tuple[object, ...], tuple[tuple[str, str], str]] = {}
    last: dict[tuple[object, ...], AnyDated] = {}
    for line in lines:
        entry = (line.gpu, line.suite_sha256, line.protocol, line.entry)
        age = (line.date, line.run)
        if entry not in source or age >= source[entry][0]:
            source[entry] = (age, line.source_sha256)
        key = (*entry, line.source_sha256, line.config)
        kept = last.get(key)
        if kept is None or _replaces(line, kept):
            last[key] = line
    return [line for key, line in last.items() if source[key[:4]][1] == key[4]]


def _replaces(line: Dated, kept: Dated) -> bool:
    if (line.status in NO_VERDICT) != (kept.status in NO_VERDICT):
        return kept.status in NO_VERDICT
    return (line.date, line.run) >= (kept.date, kept.run)
