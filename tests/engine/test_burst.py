"""A turn: what its worker is asked, and who may run meanwhile. No process is started."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from harness.cli.selftest.stand_ins import standing_in
from harness.engine.burst import Question, draw_ahead, run_burst, settle
from harness.engine.guards.budget import Budget
from harness.engine.guards.quiet import Rest
from harness.engine.processes.judge_client import BurstOptions
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.schema import Case, Kind, Limits, Status
from tests.engine.factory import worker

CASE = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64, burst=2)
TIMED = Question(Probe(CASE), "block/c/1/f01", CASE.burst, timed=True)
QUESTION = Question(Probe(CASE), "block/c/0/f00", CASE.burst)
GOOD = BurstReport(status=Status.PASSED, calls_ms=(1.0, 1.0), t2_ms=3.0)


def bench(*names: str, spinning: Sequence[str] = (), shared: bool = False) -> Any:
    """A State of attached workers; `asked` is what the judge was told to draw.

    The kernels of those `spinning` run though they are locked; `shared`: somebody else's always do.
    """
    asked: list[tuple[str, bool]] = []
    failed: dict[str, MagicMock] = {}

    def inputs(
        probe: Probe, label: str, calls: int, whole: bool, answered: bool, watched: bool, who: str
    ) -> float:
        asked.append((label, answered))
        spins = [name for name in spinning if workers[name].attached]
        return 2.0 if watched and (spins or shared) else 0.003

    workers = {
        name: worker(name, Kind.BASELINE if name in ("base", "null") else Kind.SUBMISSION)
        for name in names
    }
    return SimpleNamespace(
        workers=workers,
        loads_again=2,
        roles=SimpleNamespace(null="null"),
        judge=MagicMock(**{"burst.return_value": GOOD, "inputs.side_effect": inputs}),
        quiet=MagicMock(
            **{
                "hold.return_value": Rest("", 0.4),
                "release.return_value": True,
                "ownerless.return_value": set(),
            },
            others=set(),
        ),
        evidence={},
        drawn_ahead=None,
        last_on_turn="",
        record=lambda name, case: failed.setdefault(name, MagicMock()),
        failed=failed,
        limits=Limits(),
        budget=Budget(Limits(), "base"),
        sizes=(0, 0),
        rng=random.Random(1),
        clean_up=lambda: None,
        asked=asked,
    )


def test_no_two_turns_are_asked_the_same() -> None:
    state = bench("a", "b")
    for name in ("a", "b", "a"):
        assert run_burst(state, name, QUESTION, 1) == GOOD.model_copy(update={"rest_ms": 0.4})
    labels = [label for label, _ in state.asked]
    assert len(set(labels)) == 3
    assert all(label.startswith("block/c/0/f00/") for label in labels)
    assert "/a/" in labels[0]
    assert "/b/" in labels[1]


@pytest.mark.parametrize(
    ("turns", "drawn"), [("a", ["a"]), ("aa", ["a", "a"]), ("ba", ["a", "b", "a"])]
)
def test_what_was_drawn_ahead_is_asked_once_and_of_nobody_else(
    turns: str, drawn: list[str]
) -> None:
    state = bench("a", "b")
    check = Question(Probe(CASE), "check/c/submission", CASE.burst, whole=True)
    draw_ahead(state, "a", check)
    with attach(state):
        for name in turns:
            state.workers[name].attached = False
            run_burst(state, name, check, 1)
    assert [label.split("/")[3] for label, _ in state.asked] == drawn
    assert len({label for label, _ in state.asked}) == len(drawn)


@pytest.mark.parametrize(
    ("said", "profile", "happened"),
    [
        (True, False, ["over", "hold", "verified"]),
        (False, False, ["verified", "hold"]),  # it was not told so: at the latest now
        (True, True, ["over", "verified"]),  # no process with a profiler is locked
    ],
)
def test_a_worker_is_locked_while_the_judge_verifies(
    said: bool, profile: bool, happened: list[str]
) -> None:
    state, seen = bench("a"), list[str]()

    def burst(*told: Any) -> BurstReport:
        if said:
            seen.append("over")
            told[-1]()
        seen.append("verified")
        return GOOD

    state.judge.burst.side_effect = burst
    state.quiet.hold.side_effect = lambda _: seen.append("hold") or Rest("", 0.4)
    run_burst(state, "a", QUESTION, 1, BurstOptions(profile=profile))
    assert seen == happened


@pytest.mark.parametrize(
    ("status", "fault", "told"),
    [
        (Status.PASSED, "its GPU work still ran", Status.LEFT_WORK_RUNNING),
        (Status.INPUT_MUTATED, "its GPU work still ran", Status.INPUT_MUTATED),
        (Status.INPUT_MUTATED, "", Status.INPUT_MUTATED),
    ],
)
def test_who_was_locked_before_the_verdict_ends_by_the_verdict(
    status: Status, fault: str, told: Status
) -> None:
    state = bench("a")

    def burst(*asked: Any) -> BurstReport:
        asked[-1]()
        return GOOD if status is Status.PASSED else BurstReport(status=status)

    state.judge.burst.side_effect = burst
    state.quiet.hold.return_value = Rest(fault, 500.0)
    reply = run_burst(state, "a", QUESTION, 1)
    assert reply
    assert reply.status is told
    assert state.workers["a"].ended


def test_an_ablation_asks_everybody_the_same() -> None:
    state = bench("a", "b")
    with standing_in(frozenset({"own_inputs"}), "engine"):
        for name in ("a", "b"):
            run_burst(state, name, QUESTION, 1)
    assert len({label for label, _ in state.asked}) == 1


@pytest.mark.parametrize(("name", "answered"), [("a", True), ("null", False)])
def test_nothing_is_worked_out_for_the_null_kernel(name: str, answered: bool) -> None:
    state = bench("a", "null")
    run_burst(state, name, QUESTION, 1)
    assert state.asked[0][1] is answered


def test_inputs_are_drawn_while_everybody_is_held_and_the_worker_rests_behind_its_turn() -> None:
    state, order = bench("a"), MagicMock()
    for name in ("release", "hold"):
        order.attach_mock(getattr(state.quiet, name), name)
    for name in ("inputs", "burst"):
        order.attach_mock(getattr(state.judge, name), name)
    run_burst(state, "a", QUESTION, 1)
    assert [call[0] for call in order.mock_calls] == ["inputs", "release", "burst", "hold"]


def test_work_left_behind_ends_its_worker_and_gives_no_time() -> None:
    state = bench("a")
    state.quiet.hold.return_value = Rest("its GPU work still ran 500 ms behind the turn", 500)
    reply = run_burst(state, "a", QUESTION, 1)
    assert reply
    assert reply.status is Status.LEFT_WORK_RUNNING
    assert not reply.calls_ms
    assert state.workers["a"].ended
    state.judge.detach.assert_called_with(state.workers["a"].label)


def test_an_answer_whose_process_has_ended_is_nobody_s() -> None:
    """Its child may have given it, which no signal of ours reaches."""
    state = bench("a")
    child = state.workers["a"].child
    child.alive, child.ending.return_value = False, "exited with code 0"
    reply = run_burst(state, "a", QUESTION, 1)
    assert reply
    assert (reply.status, reply.message) == (
        Status.CRASHED,
        "its process ended in its turn: exited with code 0",
    )


LATE = BurstReport(status=Status.TIMED_OUT, message="its import took more than 120 s")
FULL = BurstReport(status=Status.OUT_OF_MEMORY, message="CUDA error: out of memory")


@pytest.mark.parametrize(
    ("late", "lost_s", "by", "loaded"),
    [
        (LATE, (100.0, 0.0), None, True),
        (LATE, (1.0, 100.0), None, True),  # our own looks had stopped it
        (LATE, (1.0, 1.0), None, False),
        (FULL, (0.0, 0.0), None, True),  # a rival had it all for a moment, between two looks
        (FULL, (0.0, 0.0), (Status.OUT_OF_MEMORY, "GPU memory 98.6 GiB, allowed 6"), False),
    ],
)
def test_who_loads_while_another_takes_all_cores_or_memory_loads_again_alone(
    late: BurstReport, lost_s: tuple[float, float], by: tuple[Status, str] | None, loaded: bool
) -> None:
    state = bench("a", "b", "base")
    a, b, base = (state.workers[name] for name in ("a", "b", "base"))
    a.ended_for, (starved_s, a.child.held_s) = by, lost_s
    a.attached = False
    b.attached = False
    state.suite = SimpleNamespace(cases=[CASE])
    told, now = iter([(15.0, late), (3.0, None)]), [0.0]

    def loads(*_: object) -> BurstReport | None:
        took_s, reply = next(told)
        now[0] += took_s
        return reply

    with (
        attach(state),
        patch("harness.engine.burst.usage.starved_s", return_value=starved_s),
        patch("harness.engine.burst.time.monotonic", lambda: now[0]),
    ):
        state.judge.attach.side_effect = loads
        reply = run_burst(state, "a", QUESTION, 1)
    assert state.budget.spent_s["a"] == 0
    assert (reply is not None) == loaded
    assert b.child.pause.called == b.child.resume.called == loaded
    assert not base.child.pause.called, "it was stopped already, behind its turn"
    assert ("a" in state.failed) != loaded


@pytest.mark.parametrize("failure", [FULL, LATE])
def test_who_lacks_memory_or_cores_alone_either_costs_the_others_two_loads_at_most(
    failure: BurstReport,
) -> None:
    """Each of a folder that burns all cores by itself had two minutes more of everybody's."""
    state = bench("a", "b", "c", "base")
    state.suite, loads = SimpleNamespace(cases=[CASE]), []
    with attach(state), patch("harness.engine.burst.usage.starved_s", return_value=100.0):
        for name in "abc":
            state.workers[name].attached = False
            state.judge.attach.side_effect = lambda *_, name=name: loads.append(name) or failure
            run_burst(state, name, QUESTION, 1)
    assert "".join(loads) == "aabbc"


def test_nobody_who_loads_burns_in_the_turn_of_another() -> None:
    state = bench("a", "b", "base")
    for name in ("b", "base"):
        state.workers[name].attached = False
    b, base = (state.workers[name].child for name in ("b", "base"))

    def burst(*_: object) -> BurstReport:
        assert b.pause.called
        assert not b.resume.called
        assert not base.pause.called, "our own goes on"
        return GOOD

    def hold(*_: object) -> Rest:
        assert not b.resume.called, "without a core it would answer the lock too late"
        return Rest()

    state.judge.burst.side_effect, state.quiet.hold.side_effect = burst, hold
    assert run_burst(state, "a", QUESTION, 1)
    assert b.resume.called


def test_who_loads_and_is_slow_to_stop_pays_for_it_by_itself() -> None:
    """Entries of a stranger, each of which waits in the kernel, took it from a rival's budget."""
    state, now = bench("a", "b"), [0.0]
    state.workers["b"].attached = False

    def passes(took_s: float) -> Callable[..., BurstReport]:
        return lambda *_: now.append(now.pop() + took_s) or GOOD

    state.workers["b"].child.pause.side_effect = passes(2)
    state.judge.burst.side_effect = passes(1)
    with patch("harness.engine.guards.budget.time.monotonic", lambda: now[0]):
        assert run_burst(state, "a", QUESTION, 1)
    assert [state.budget.spent_s[name] for name in "ab"] == [1, 2]


@pytest.mark.parametrize(
    ("starts", "runs", "spent_s"), [(1, True, 2.0), (0, False, 2.0), (2, True, 17), (1, False, 17)]
)
def test_to_load_is_no_turn_but_the_first_time(starts: int, runs: bool, spent_s: float) -> None:
    """All load at once, so others may take its time; who begins again and again pays for it."""
    state, now = bench("a"), [0.0]
    state.workers["a"].attached, state.workers["a"].starts = False, starts
    state.workers["a"].child.alive = runs

    def passes(took_s: float, reply: BurstReport | None) -> Callable[..., BurstReport | None]:
        def call(*_: object) -> BurstReport | None:
            now[0] += took_s
            return reply

        return call

    state.judge.attach.side_effect, state.judge.burst.side_effect = (
        passes(15, None),
        passes(2, GOOD),
    )
    with attach(state), patch("harness.engine.burst.time.monotonic", lambda: now[0]):
        assert run_burst(state, "a", QUESTION, 1)
    assert state.budget.spent_s["a"] == spent_s


@pytest.mark.parametrize(("starts", "spent_s"), [(1, 0.0), (2, 15.0)])
def test_who_loads_before_it_has_a_turn_is_given_nothing(starts: int, spent_s: float) -> None:
    state, now = bench("a"), [0.0]
    state.workers["a"].attached, state.workers["a"].starts = False, starts
    state.suite = SimpleNamespace(cases=[CASE])
    state.may_run = lambda name, case: True

    def loads(*_: object) -> None:
        now[0] += 15.0

    state.judge.attach.side_effect = loads
    with attach(state), patch("harness.engine.burst.time.monotonic", lambda: now[0]):
        settle(state)
    assert state.budget.spent_s["a"] == spent_s


def test_who_has_failed_everywhere_leaves_before_anybody_is_timed() -> None:
    state = bench("wrong", "loading", "right")
    state.workers["loading"].attached = False
    state.suite = SimpleNamespace(cases=[CASE, CASE])
    state.may_run = lambda name, case: name == "right"
    settle(state)
    assert [name for name, worker in state.workers.items() if worker.ended] == ["wrong", "loading"]
    state.judge.detach.assert_called_once_with(state.workers["wrong"].label)
    assert state.workers["right"].attached


def test_a_worker_that_another_made_unusable_is_replaced_and_takes_its_turn() -> None:
    state = bench("a")
    state.quiet.release.side_effect = [False, True]
    state.judge.attach.return_value = None
    with patch("harness.engine.processes.worker_process.holds", return_value=True):
        reply = run_burst(state, "a", QUESTION, 1)
    assert reply
    assert reply.status is Status.PASSED
    assert state.workers["a"].ended
    assert state.judge.attach.called


def test_a_turn_past_all_deadlines_ends_its_worker_as_timed_out() -> None:
    state = bench("a")
    state.quiet = MagicMock(**{"hold.return_value": Rest(), "release.return_value": True})

    def burst(label: str, timeout_s: float, overdue: Any, *_: object) -> BurstReport:
        overdue(32.0)
        return BurstReport(status=Status.CRASHED, message="the process ended during 'go'")

    state.judge.burst.side_effect = burst
    reply = run_burst(state, "a", QUESTION, 1)
    assert reply
    assert reply.status is Status.TIMED_OUT
    assert "32 s" in reply.message
    assert state.quiet.rescue_judge.called


def attach(state: Any) -> Any:
    """Whatever was ended starts again when it is needed."""
    state.judge.attach.return_value = None
    return patch("harness.engine.processes.worker_process.holds", return_value=True)


def test_whose_kernels_run_on_behind_the_lock_is_found_and_nobody_else_fails() -> None:
    state = bench("base", "a", "b", "null", spinning=["b"])
    state.last_on_turn = "b"
    with attach(state):
        assert run_burst(state, "a", TIMED, 1) == GOOD.model_copy(update={"rest_ms": 0.4})
    ((status, reason),) = (call.args for call in state.failed["b"].fail.call_args_list)
    assert status is Status.LEFT_WORK_RUNNING
    assert "outlived the driver's lock" in reason
    assert set(state.failed) == {"b"}
    assert not any(state.workers[name].ended for name in ("base", "a", "null"))


def test_whoever_is_ended_on_the_way_starts_again() -> None:
    state = bench("base", "a", "b", spinning=["b"])
    state.last_on_turn = "a"
    with attach(state):
        assert run_burst(state, "a", TIMED, 1) == GOOD.model_copy(update={"rest_ms": 0.4})
    assert state.workers["a"].ended
    assert state.workers["a"].attached
    assert set(state.failed) == {"b"}
    assert not state.workers["base"].ended


def test_who_is_on_turn_may_be_the_one() -> None:
    state = bench("base", "a", spinning=["a"])
    reply = run_burst(state, "a", TIMED, 1)
    assert reply
    assert reply.status is Status.LEFT_WORK_RUNNING
    assert not state.judge.burst.called


def test_a_gap_that_does_not_come_again_is_nobodys() -> None:
    state = bench("base", "a")
    state.judge.inputs.side_effect = [2.0, 0.003]
    assert run_burst(state, "a", TIMED, 1) == GOOD.model_copy(update={"rest_ms": 0.4})
    assert not state.workers["base"].ended


def test_a_gpu_that_is_shared_with_the_unknown_is_contended() -> None:
    state = bench("base", "a", shared=True)
    reply = run_burst(state, "a", TIMED, 1)
    assert reply
    assert reply.status is Status.CONTENDED
    assert not state.failed


def test_the_wait_begins_where_its_calls_ended() -> None:
    state = bench("base", "a")
    state.judge.burst.return_value = GOOD.model_copy(update={"rest_ms": 200.0})
    reply = run_burst(state, "a", TIMED, 1)
    assert reply
    assert reply.rest_ms == 200.4


def test_a_check_is_not_watched() -> None:
    state = bench("base", "a", spinning=["base"])
    assert run_burst(state, "a", QUESTION, 1) == GOOD.model_copy(update={"rest_ms": 0.4})


@pytest.mark.parametrize("heir", ["a", "b", "nobody"])
def test_what_an_ended_process_left_to_its_child_is_its_entry_s(heir: str) -> None:
    state = bench("base", "a", "b")
    state.last_on_turn = "a"
    mine = state.workers.get(heir)
    state.quiet.ownerless.side_effect = lambda: set() if mine and not mine.attached else {71}
    with attach(state), patch("harness.engine.burst.CLEARED_UP_S", 0.0):
        reply = run_burst(state, "a", TIMED, 1)
    assert reply
    expected = {"a": Status.LEFT_WORK_RUNNING, "b": Status.PASSED, "nobody": Status.CONTENDED}
    assert reply.status is expected[heir]
    assert set(state.failed) == ({"b"} if heir == "b" else set())
    assert state.quiet.others == ({71} if heir == "nobody" else set())
