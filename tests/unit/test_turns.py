"""A turn: what its worker is asked, and who may run meanwhile. No process is started."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.bench import Reply
from harness.defences import NOTHING_OFF, Defence, Off
from harness.problems.base import Probe
from harness.schema import Case, Status
from harness.turns import Question, take_turn

CASE = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64, burst=2)
QUESTION = Question(Probe(CASE), "block/c/0/f00", CASE.burst)
GOOD = Reply(Status.PASSED, "", (1.0, 1.0), 3.0, None, ())


def bench(*names: str, off: Off = NOTHING_OFF) -> Any:
    """A State of attached workers; `asked` is what the judge was told to draw."""
    asked: list[tuple[str, bool]] = []

    def inputs(probe: Probe, label: str, calls: int, whole: bool, answered: bool) -> None:
        asked.append((label, answered))

    seats = {name: MagicMock(attached=True, killed_for="", label=f"{name}-1") for name in names}
    return SimpleNamespace(
        seats=seats,
        roles=SimpleNamespace(null="null"),
        judge=SimpleNamespace(inputs=inputs, burst=lambda *_: GOOD),
        facts=SimpleNamespace(off=off),
        rng=random.Random(1),
        clean_up=lambda: None,
        asked=asked,
    )


def test_no_two_turns_are_asked_the_same() -> None:
    state = bench("a", "b")
    for name in ("a", "b", "a"):
        assert take_turn(state, name, CASE, QUESTION, 1) == GOOD
    labels = [label for label, _ in state.asked]
    assert len(set(labels)) == 3
    assert all(label.startswith("block/c/0/f00/") for label in labels)
    assert "/a/" in labels[0]
    assert "/b/" in labels[1]


def test_an_ablation_asks_everybody_the_same() -> None:
    state = bench("a", "b", off=frozenset({Defence.OWN_INPUTS}))
    for name in ("a", "b"):
        take_turn(state, name, CASE, QUESTION, 1)
    assert len({label for label, _ in state.asked}) == 1


@pytest.mark.parametrize(("name", "answered"), [("a", True), ("null", False)])
def test_nothing_is_worked_out_for_the_null_kernel(name: str, answered: bool) -> None:
    state = bench("a", "null")
    take_turn(state, name, CASE, QUESTION, 1)
    assert state.asked[0][1] is answered
