"""engine: whatever ends a run, every open case is told of."""

from __future__ import annotations

import pytest

from harness.engine import Run
from harness.errors import WireError
from harness.schema import Status


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (KeyboardInterrupt(), Status.INTERRUPTED, "stopped by Ctrl-C"),
        (WireError("the judge is gone"), Status.HARNESS_ERROR, "the judge is gone"),
        (OverflowError("math range error"), Status.HARNESS_ERROR, "OverflowError('math range"),
    ],
)
def test_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException, status: Status, reason: str
) -> None:
    told: list[tuple[Status, str]] = []
    monkeypatch.setattr(Run, "_abandon", lambda _, status, reason: told.append((status, reason)))
    run = object.__new__(Run)
    with pytest.raises(type(fault)), run.nothing_lost():
        raise fault
    ((got, words),) = told
    assert got is status
    assert words.startswith(reason)
