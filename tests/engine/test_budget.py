"""An entrant's wall-clock: deadlines of its turns, and what all of them may take together."""

from __future__ import annotations

import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine import burst as engine_burst
from harness.engine.guards import budget as engine_budget
from harness.engine.guards.budget import SHORTEST_S, Budget
from harness.engine.processes.judge_client import JudgeFailed
from harness.errors import HarnessError
from harness.process.messages import BurstReport
from harness.schema import Case, Kind, Limits, Manifest, Status
from tests.engine.factory import worker

LIMITS = Limits(first_call_s=180, again_s=5, entrant_s=100, entrant_times=10)
CASES = [Case(name=n, batch=1, heads=1, seqlen=16, headdim=16) for n in ("one", "two", "three")]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 400)), max_size=40))
def test_nobody_spends_more_than_the_budget_and_one_turn(told: list[tuple[bool, float]]) -> None:
    budget = Budget(LIMITS, "control")
    for is_pace, wants_s in told:
        if is_pace:
            budget.spent_s["control"] += wants_s / 100
        elif not budget.overdrawn("mine"):
            deadline_s = budget.deadline_s("mine", LIMITS.first_call_s)
            assert deadline_s >= SHORTEST_S
            budget.spent_s["mine"] += min(wants_s, deadline_s)
        assert budget.spent_s["mine"] <= budget.allowed_s() + SHORTEST_S


def test_who_hung_once_is_not_waited_for_as_long_again() -> None:
    budget = Budget(LIMITS, "control")
    assert budget.deadline_s("mine", 20) == 20
    budget.hung.add("mine")
    assert (budget.deadline_s("mine", 20), budget.deadline_s("other", 20)) == (5, 20)


class Stage:
    """A run whose turns take as long as `takes` says; nobody's process is touched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes: tuple[float, Status]) -> None:
        self.now, self.asked, self.left = 0.0, list[float](), iter(takes)
        monkeypatch.setattr(engine_budget.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(engine_burst, "_burst", self.burst)
        self.workers = {
            name: self.worker(kind) for name, kind in zip(("mine", "control"), Kind, strict=True)
        }
        self.detached: list[str] = []
        self.failed: dict[str, tuple[Status, str]] = {}
        self.state: Any = SimpleNamespace(
            suite=SimpleNamespace(cases=CASES),
            limits=LIMITS,
            workers=self.workers,
            budget=Budget(LIMITS, "control"),
            judge=SimpleNamespace(detach=self.detached.append),
            done={"one"},
            clean_up=lambda: None,
            record=lambda _, case: SimpleNamespace(
                fail=lambda *why: self.failed.setdefault(case.name, why)
            ),
        )

    def worker(self, kind: Kind) -> Any:
        return worker("mine", kind)

    def burst(self, *_: object, timeout_s: float) -> BurstReport:
        self.asked.append(timeout_s)
        seconds, status = next(self.left)
        self.now += min(seconds, timeout_s)
        return BurstReport(status=status)

    def turn(self, name: str = "mine") -> BurstReport | None:
        return engine_burst.run_burst(self.state, name, CASES[1], LIMITS.first_call_s)


def test_slow_within_every_deadline_is_told_what_it_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *itertools.repeat((40.0, Status.PASSED), 9))
    stage.turn("control")
    stage.state.budget.spent_s["control"] = 2.5  # 100 + 10 * 2.5 s
    assert [stage.turn() is None for _ in range(5)] == [False] * 4 + [True]
    assert stage.asked[1:] == [125, 85, 45, 5]
    assert stage.detached == [stage.workers["mine"].label]
    why = (Status.TIMED_OUT, "spent 125 s of 125 s: 100 s and 10 times the 2.5 s of control")
    assert stage.failed == {"two": why, "three": why}, "the row of a complete case stays"


def test_a_turn_that_the_budget_cut_short_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, (90.0, Status.PASSED), (99.0, Status.TIMED_OUT))
    stage.turn()
    reply = stage.turn()
    assert stage.asked == [100, 10]
    assert reply
    assert reply.message == "spent 100 s of 100 s: 100 s and 10 times the 0.0 s of control"


def test_after_a_hang_the_next_turns_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *itertools.repeat((999.0, Status.TIMED_OUT), 9))
    stage.state.budget.limits = LIMITS.model_copy(update={"entrant_s": 600})
    for _ in range(3):
        stage.turn()
    assert stage.asked == [180, 5, 5]


def test_a_plain_cu_has_nothing_to_compile_in_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, (1.0, Status.PASSED))
    manifest = Manifest(name="mine", entry="kernel.cu", language="cuda")
    mine = stage.workers["mine"]
    mine.entrant = mine.entrant.model_copy(update={"manifest": manifest})
    stage.turn()
    assert stage.asked == [LIMITS.burst_s]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ValueError("35 is not a valid Signals"), Status.BROKE_THE_RUN),
        (HarnessError("no process could be forked"), Status.HARNESS_ERROR),
    ],
)
def test_a_fault_of_ours_in_a_turn_ends_that_entry_alone(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, status: Status
) -> None:
    stage = Stage(monkeypatch)

    def broken(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(engine_burst, "_burst", broken)
    assert stage.turn() is None
    assert stage.failed["two"][0] is status
    assert stage.detached == [stage.workers["mine"].label]
    with pytest.raises(type(fault)):
        stage.turn("control")


def test_a_judge_that_fails_is_more_than_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)

    def broken(*_: object, **__: object) -> None:
        raise JudgeFailed("the judge failed")

    monkeypatch.setattr(engine_burst, "_burst", broken)
    with pytest.raises(JudgeFailed):
        stage.turn()


def test_a_baseline_is_not_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *itertools.repeat((179.0, Status.PASSED), 9))
    assert all(stage.turn("control") for _ in range(9))
    assert stage.asked == [180] * 9
    assert stage.state.budget.spent_s == defaultdict(float, control=179.0 * 9)
