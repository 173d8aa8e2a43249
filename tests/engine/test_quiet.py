"""Holding and releasing workers, with a driver and an NVML of our own: no GPU is needed."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine.guards import quiet
from harness.engine.guards.quiet import Quiet, has_device_open
from harness.process.cuda.checkpoint import Answer, Held
from harness.process.sandbox import usage
from tests.engine.factory import worker

JUDGE, WORKER, CHILD, STRANGER = 10, 20, 21, 90
DEAD = 2**22 + 1  # no process has it


def test_who_has_ended_and_is_still_on_the_gpu_is_no_stranger(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.on_gpu = {JUDGE, os.getpid()}
    scene.quiet.ready(JUDGE)
    assert scene.quiet.ownerless() <= {JUDGE}
    scene.on_gpu.add(DEAD)
    assert DEAD in scene.quiet.ownerless()
    assert not any(str(DEAD) in told for told in scene.quiet.strangers([scene.worker]))
    assert Quiet().ownerless() == set()
    unwaited = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, unwaited, os.WEXITED | os.WNOWAIT)
    scene.on_gpu.add(unwaited)
    assert unwaited in scene.quiet.ownerless()
    os.waitpid(unwaited, 0)
    monkeypatch.setattr(usage, "states", lambda _: "")  # a /proc that hides what others' do
    assert scene.quiet.ownerless() == {DEAD, unwaited}
    scene.quiet.others = {DEAD}  # of a user whose processes nobody sees
    assert DEAD not in scene.quiet.ownerless()
    assert any(str(DEAD) in told for told in scene.quiet.strangers([scene.worker]))


class Driver:
    """Locks whoever runs; `answers` says otherwise for a pid. Every step goes into `steps`."""

    def __init__(self, steps: list[str], **kwargs: Any) -> None:
        self.steps, self.missing = steps, kwargs.pop("missing", "")
        self.answers: dict[int, Held] = {}
        self.locked: set[int] = set()

    def lock(self, pid: int, timeout_ms: int) -> Answer:
        self.steps.append(f"lock {pid}")
        held = self.answers.get(pid, Held.LOCKED)
        self.locked |= {pid} if held is Held.LOCKED else set()
        return Answer(held, 1.5, 0 if held is Held.LOCKED else 600)

    def unlock(self, pid: int) -> bool:
        self.steps.append(f"unlock {pid}")
        was = pid in self.locked
        self.locked.discard(pid)
        return was


class Scene:
    """A worker (and what it started), a judge, and who is on the GPU."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *tree: int, missing: str = "", display: bool = False
    ) -> None:
        self.steps: list[str] = []
        self.notes: list[str] = []
        self.on_gpu = {JUDGE, WORKER}
        self.below: dict[int, list[int]] = {WORKER: list(tree)}
        self.driver = Driver(self.steps, missing=missing)
        monitor: Any = SimpleNamespace(
            memory_by_pid=lambda: dict.fromkeys(self.on_gpu, 0), has_display=display
        )
        self.quiet = Quiet(monitor, self.notes.append, lambda: self.driver)  # type: ignore[arg-type,return-value]
        child = SimpleNamespace(
            pid=WORKER,
            pids=lambda: [WORKER, *self.below.get(WORKER, [])],
            alive=True,
            resume=lambda: self.steps.append("go on"),
            pause=lambda: self.steps.append("stop"),
            signalled=contextlib.nullcontext(),
        )
        self.worker = worker("mine", running=False).becomes(child)
        monkeypatch.setattr(quiet.process_tree, "descendants", lambda pid: self.below.get(pid, []))
        self.quiet.ready(JUDGE)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_lock_first_and_stop_afterwards(scene: Scene) -> None:
    assert scene.quiet.hold(scene.worker).fault == ""
    assert scene.steps == ["go on", f"lock {WORKER}", "stop"]
    assert scene.quiet.release(scene.worker)
    assert scene.steps[3:] == ["go on", f"unlock {WORKER}"]
    assert not scene.worker.held


def test_a_child_on_the_gpu_is_locked_too_and_one_elsewhere_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, CHILD, 22)
    scene.on_gpu.add(CHILD)
    scene.quiet.hold(scene.worker)
    assert scene.worker.held == {WORKER, CHILD}
    assert "lock 22" not in scene.steps


@pytest.mark.parametrize(
    ("pid", "held", "words"),
    [
        (WORKER, Held.BUSY, "its GPU work still ran 500 ms"),
        (CHILD, Held.BUSY, "a child process's GPU work"),
        (WORKER, Held.SILENT, "did not answer"),
        (CHILD, Held.REFUSED, "refuses to lock a child process's"),
    ],
)
def test_who_does_not_come_to_rest_is_known(
    monkeypatch: pytest.MonkeyPatch, pid: int, held: Held, words: str
) -> None:
    scene = Scene(monkeypatch, CHILD)
    scene.on_gpu.add(CHILD)
    scene.quiet.locked_once = True  # somebody else's worker
    scene.driver.answers[pid] = held
    assert words in scene.quiet.hold(scene.worker).fault


def test_who_has_left_the_gpu_meanwhile_needs_no_lock(scene: Scene) -> None:
    def gone(pid: int, timeout_ms: int) -> Answer:
        scene.on_gpu.discard(pid)
        return Answer(Held.REFUSED, 0.1, 304)

    scene.driver.lock = gone  # type: ignore[method-assign]
    assert scene.quiet.hold(scene.worker).fault == ""


def test_a_child_that_takes_the_gpu_during_the_lock_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, CHILD)
    lock = scene.driver.lock

    def late(pid: int, timeout_ms: int) -> Answer:
        scene.on_gpu.add(CHILD)
        return lock(pid, timeout_ms)

    scene.driver.lock = late  # type: ignore[method-assign]
    assert scene.quiet.hold(scene.worker).fault == ""
    assert scene.steps == [
        *("go on", f"lock {WORKER}", "stop"),
        *("go on", f"lock {CHILD}", "stop"),
    ]


def test_an_endless_row_of_children_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    fresh = iter(range(100, 200))

    def more(pid: int, timeout_ms: int) -> Answer:
        child = next(fresh)
        scene.below[WORKER].append(child)
        scene.on_gpu.add(child)
        scene.worker.held.add(pid)
        return Answer(Held.LOCKED, 0.3)

    scene.driver.lock = more  # type: ignore[method-assign]
    assert "faster than they can be locked" in scene.quiet.hold(scene.worker).fault


def test_without_the_interface_a_worker_is_stopped_and_the_row_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, missing="this driver has no checkpoint interface")
    assert scene.quiet.hold(scene.worker).fault == ""
    assert scene.steps == ["stop"]
    assert scene.quiet.unlocked
    assert len(scene.notes) == 1
    assert "'unlocked', not 'judged'" in scene.notes[0]


def test_a_driver_that_locks_nobody_is_no_fault_of_a_worker(scene: Scene) -> None:
    scene.driver.answers[WORKER] = Held.REFUSED
    for _ in range(2):
        assert scene.quiet.hold(scene.worker).fault == ""
    assert scene.quiet.unlocked
    assert len(scene.notes) == 1
    scene.driver.answers.clear()
    scene.quiet.hold(scene.worker)
    scene.driver.answers[CHILD] = Held.REFUSED
    scene.below[WORKER], scene.on_gpu = [CHILD], {JUDGE, WORKER, CHILD}
    assert "refuses" in scene.quiet.hold(scene.worker).fault
    assert not scene.quiet.unlocked


def test_a_worker_that_somebody_else_unlocked_is_not_let_go_on(scene: Scene) -> None:
    scene.quiet.hold(scene.worker)
    scene.driver.locked.clear()
    assert not scene.quiet.release(scene.worker)
    scene.quiet.hold(scene.worker)
    scene.driver.locked.clear()
    scene.worker.child.alive = False  # type: ignore[misc]  # it ended: its turn will say so
    assert scene.quiet.release(scene.worker)


def test_strangers(scene: Scene) -> None:
    assert scene.quiet.strangers([scene.worker]) == []
    scene.quiet._ended = lambda listed: {DEAD}  # type: ignore[method-assign]
    scene.on_gpu |= {STRANGER, CHILD, DEAD}
    scene.below[os.getpid()] = [WORKER, CHILD]  # ours, wherever it hangs
    (told,) = scene.quiet.strangers([scene.worker])
    assert told.startswith(f"{STRANGER} (")


def test_where_nvml_tells_other_pids_it_is_said_and_the_device_files_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, CHILD, 22)
    scene.on_gpu = {4711, 4712}  # the host's numbers for ours
    scene.quiet.ready(JUDGE)
    assert "cannot be seen" in scene.notes[0]
    assert scene.quiet.strangers([scene.worker]) == []
    monkeypatch.setattr(quiet, "has_device_open", lambda pid: pid in (WORKER, CHILD))
    scene.quiet.hold(scene.worker)
    assert scene.worker.held == {WORKER, CHILD}


def test_device_files() -> None:
    assert not has_device_open(os.getpid())
    assert not has_device_open(2**22 + 1)


def test_without_a_gpu_it_stops_and_resumes(scene: Scene) -> None:
    plain = Quiet()
    plain.ready(JUDGE)
    assert plain.hold(scene.worker).fault == ""
    assert plain.release(scene.worker)
    assert scene.steps == ["stop", "go on"]
    assert plain.strangers([scene.worker]) == []
    assert not plain.unlocked


def test_a_gpu_with_a_display_is_not_watched_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    assert scene.quiet.watches
    shown = Scene(monkeypatch, display=True)
    assert not shown.quiet.watches
    assert "display" in shown.notes[0]
    assert not Quiet().watches


def test_a_worker_that_has_just_loaded_has_longer(scene: Scene) -> None:
    told: list[int] = []

    def busy(pid: int, timeout_ms: int) -> Answer:
        told.append(timeout_ms)
        return Answer(Held.BUSY, timeout_ms, 600)

    scene.driver.lock = busy  # type: ignore[method-assign]
    assert "10000 ms behind its import" in scene.quiet.hold(scene.worker, loaded=True).fault
    assert "500 ms behind its turn" in scene.quiet.hold(scene.worker).fault
    assert told == [10_000, 500]
