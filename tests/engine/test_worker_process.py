"""A worker's life: what it is told, in which order it leaves, and what its end means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.engine.processes.judge_client import PLAIN
from harness.process.messages import BurstReport
from harness.schema import Status
from tests.engine.factory import worker

CRASH = BurstReport(status=Status.CRASHED, message="the process ended during 'go'")
GOOD = BurstReport(status=Status.PASSED, calls_ms=(1.0,), t2_ms=1.0)


def test_it_ends_and_is_cleaned_up_behind_before_the_judge_frees_its_buffers() -> None:
    mine, steps = worker("mine"), MagicMock()
    mine.end = steps.end  # type: ignore[method-assign]
    mine.leave(steps.judge, steps.clean_up)
    names = [call[0] for call in steps.mock_calls]
    assert names == ["end", "clean_up", "judge.detach"]
    assert not mine.attached
    mine.leave(steps.judge, steps.clean_up)
    assert steps.judge.detach.call_count == 1, "nobody is forgotten twice"


@pytest.mark.parametrize(
    ("reply", "alive", "goes_on"),
    [
        (GOOD, True, True),
        (GOOD, False, False),
        (CRASH, True, False),
        (GOOD.model_copy(update={"calls_ms": ()}), True, False),
        (GOOD.model_copy(update={"status": Status.INCORRECT}), True, True),
    ],
)
def test_who_goes_on_behind_its_calls(reply: BurstReport, alive: bool, goes_on: bool) -> None:
    mine, judge = worker("mine"), MagicMock(**{"burst.return_value": reply})
    mine.child.alive = alive  # type: ignore[misc]
    assert mine.run(judge, 1.0, print, PLAIN) == (reply, goes_on)


@pytest.mark.parametrize(
    ("reply", "ending", "ran_out", "ended_for", "status", "said"),
    [
        (CRASH, "killed by SIGSEGV", False, None, Status.CRASHED, "killed by SIGSEGV"),
        (CRASH, "still running", False, None, Status.CRASHED, "during 'go'"),
        (CRASH, "killed by SIGKILL", True, None, Status.OUT_OF_MEMORY, "host memory"),
        (CRASH, "killed by SIGKILL", True, "32 s", Status.TIMED_OUT, "32 s"),
        (GOOD, "exited with code 0", False, None, Status.CRASHED, "in its turn: exited"),
    ],
)
def test_what_its_end_means(
    reply: BurstReport, ending: str, ran_out: bool, ended_for: str, status: Status, said: str
) -> None:
    mine, judge = worker("mine"), MagicMock()
    child: Any = mine.child
    child.ending.return_value = ending
    child.group = SimpleNamespace(ran_out=lambda: ran_out)
    if ended_for:
        mine.end_for(Status.TIMED_OUT, ended_for)
    found = mine.reap(judge, lambda: None, reply)
    assert found.status is status
    assert said in found.message
    assert judge.detach.called


def test_the_judge_has_no_name_for_two() -> None:
    """These two had one, of what is left of a name and 24 bits of its hash: found in 25 s."""
    names = ("honest_one", "honest._.--.-.__-_..-_one", "honest-one", "honest-one-1", "honest/one")
    labels = {f"{worker(name).label[:-1]}{start}" for name in names for start in (1, 11)}
    assert len(labels) == 2 * len(names)


def test_a_replacement_is_another_one_and_has_no_profiler() -> None:
    mine = worker("mine")
    first = mine.label
    assert (mine.wants_profiler(), mine.wants_profiler()) == (True, False)
    mine.leave(MagicMock(), lambda: None)
    assert not mine.wants_profiler()
    mine.start()
    mine.attached = True
    assert mine.label != first
    assert mine.wants_profiler()
