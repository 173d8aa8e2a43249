"""Which lines of the results count: of every entrant the newest verdict of its newest source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from harness.board.record import Head
from harness.schema import Result, Status

#: Endings that are no verdict: an older one of the same source stays.
NO_VERDICT = frozenset(
    {Status.UNAVAILABLE, Status.UNSTABLE, Status.CONTENDED}
    | {Status.INTERRUPTED, Status.HARNESS_ERROR}
)


#: A line's front, or all of it.
Line = TypeVar("Line", Head, Result)


def newest(lines: Iterable[Line]) -> list[Line]:
    """Of each (gpu, suite, protocol, entry, config) the newest verdict of the newest source."""
    source: dict[tuple[object, ...], tuple[tuple[str, str], str]] = {}
    last: dict[tuple[object, ...], Line] = {}
    for line in lines:
        who: tuple[object, ...] = (line.gpu, line.suite_sha256, line.protocol, line.entry)
        age = (line.date, line.run)
        if who not in source or age >= source[who][0]:
            source[who] = (age, line.source_sha256)
        key = (*who, line.source_sha256, line.config)
        kept = last.get(key)
        if kept is None or _replaces(line, kept):
            last[key] = line
    return [line for key, line in last.items() if source[key[:4]][1] == key[4]]


def _replaces(line: Head | Result, kept: Head | Result) -> bool:
    if (line.status in NO_VERDICT) != (kept.status in NO_VERDICT):
        return kept.status in NO_VERDICT
    return (line.date, line.run) >= (kept.date, kept.run)
