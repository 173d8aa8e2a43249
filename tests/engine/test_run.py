"""engine: whatever ends a run, every open case is told of."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from harness.catalog.suites import load_suite
from harness.engine.run import Run
from harness.engine.run_state import wanted_probes
from harness.errors import WireError
from harness.problems import get_problem
from harness.schema import Claims, Status

ROOT = Path(__file__).resolve().parents[2]


def test_a_case_that_is_timed_keeps_its_row_when_the_run_breaks_later() -> None:
    suite = load_suite("quick", ROOT / "configs")
    run = object.__new__(Run)
    run.suite, run.done, run.workers = suite, set(), {"mine": SimpleNamespace()}  # type: ignore[dict-item]
    run.judge = SimpleNamespace(commitment="new")  # type: ignore[assignment]
    first, second, *_ = (case.name for case in suite.cases)
    run.done.add(first)
    run.told = {first: ("c1", "s1"), second: ("c2", "s2")}
    records: dict[str, MagicMock] = defaultdict(MagicMock)
    run.record = lambda name, case: records[case.name]  # type: ignore[method-assign]
    finished: dict[str, tuple[str, str]] = {}
    run._finish = lambda case, *told: finished.update({case.name: told})  # type: ignore[method-assign]
    run._abandon(Status.HARNESS_ERROR, "the judge is gone")
    assert first not in finished
    assert finished.pop(second) == ("c2", "s2")
    assert not records[second].fail.called
    assert finished
    for name, told in finished.items():
        assert told == ("new", "")
        records[name].fail.assert_called_once_with(Status.HARNESS_ERROR, "the judge is gone")


def test_a_hidden_shape_whose_secret_is_not_told_has_no_time() -> None:
    """Nobody could draw it again."""
    suite = load_suite("quick", ROOT / "configs")
    hidden = suite.cases[0].model_copy(update={"name": "hidden_hdim64"})
    run = object.__new__(Run)
    run.suite = suite.model_copy(update={"cases": (hidden,)})
    run.done, run.told, run.workers = set(), {}, {"mine": SimpleNamespace()}  # type: ignore[dict-item]
    run.judge = SimpleNamespace(commitment="new")  # type: ignore[assignment]
    known = MagicMock(samples=["five of five blocks"])
    run.record = lambda *_: known  # type: ignore[method-assign]
    run._finish = lambda *_: None  # type: ignore[method-assign]
    run._abandon(Status.INTERRUPTED, "stopped by Ctrl-C")
    assert known.samples == []


def test_claims_that_refuse_every_case_make_no_room_for_others_to_fill() -> None:
    suite, problem = load_suite("quick", ROOT / "configs"), get_problem("attention_forward")
    odd = SimpleNamespace(manifest=SimpleNamespace(claims=Claims(seqlen_multiple=1 << 24)))
    wide = SimpleNamespace(manifest=SimpleNamespace(claims=Claims(seqlen_multiple=64)))
    plain = wanted_probes(suite, problem, [SimpleNamespace(entrant=wide)])  # type: ignore[list-item]
    both = [SimpleNamespace(entrant=each) for each in (wide, odd)]
    assert wanted_probes(suite, problem, both) == plain  # type: ignore[arg-type]
    assert len(plain) > len(suite.cases)


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
