"""Profilers are set up in many workers at once, each once, and only while its worker runs."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine.guards.quiet import Quiet
from harness.engine.processes import judge_client
from harness.engine.processes.judge_client import JudgeClient, JudgeFailed
from harness.engine.timing import prime
from harness.judge.burst import WorkerLink
from harness.judge.judge import Judge
from harness.process import wire
from harness.schema import Limits
from harness.worker.__main__ import Worker
from tests.engine.factory import worker


class Stage:
    """Seats that note when they run, and a judge that notes who ran when it asked."""

    def __init__(self, *names: str) -> None:
        self.running: set[str] = set()
        self.asked: list[list[str]] = []
        self.workers = {name: self.worker(name) for name in names}
        self.roles = SimpleNamespace(null="null")
        self.limits = Limits()
        self.quiet = Quiet()
        self.judge = SimpleNamespace(prime=self.profiler_started)

    def worker(self, name: str) -> Any:
        made = worker(name)
        made.child.resume = lambda: self.running.add(name)
        made.child.pause = lambda: self.running.discard(name)
        return made

    def profiler_started(self, labels: list[str], timeout_s: float, overdue: object) -> None:
        assert {self.workers[name].label for name in self.running} == set(labels)
        self.asked.append(labels)


def test_all_at_once_and_nobody_twice() -> None:
    stage = Stage("a", "b", "null")
    prime(stage, list(stage.workers))  # type: ignore[arg-type]
    prime(stage, list(stage.workers))  # type: ignore[arg-type]
    assert stage.asked == [[stage.workers[name].label for name in ("a", "b")]]
    assert not stage.running


def test_a_replacement_has_no_profiler_yet() -> None:
    stage = Stage("a", "b")
    prime(stage, list(stage.workers))  # type: ignore[arg-type]
    stage.workers["b"].start()
    stage.judge = SimpleNamespace(prime=lambda labels, *_: stage.asked.append(labels))
    prime(stage, list(stage.workers))  # type: ignore[arg-type]
    assert stage.asked[1:] == [[stage.workers["b"].label]]


def test_who_dies_or_lies_does_not_stop_the_others(tmp_path: Path) -> None:
    """Three workers: one answers, one is gone, one says something else; the judge waits for no more than that."""
    judge = Judge("attention_forward", "cpu")
    theirs = []
    for name in ("good", "gone", "liar"):
        ours, other = socket.socketpair()
        judge.links[name] = WorkerLink(ours, "host", (4096, 4096))
        theirs.append(other)
    good, gone, liar = theirs
    gone.close()
    wire.send(liar, {"op": "done"})
    worker = Worker(lambda: None, tmp_path, "cpu")
    thread = threading.Thread(target=lambda: wire.send(good, worker.handle(wire.receive(good))))
    thread.start()
    names = ["gone", "liar", "good"]
    answers = [judge.handle({"op": "prime", "workers": names}, [])]
    answers += [
        judge.handle({"op": "profiler_started", "worker": name, "timeout_s": 5}, [])
        for name in names
    ]
    thread.join()
    assert answers == [{"ok": True}] * 4
    for end in (good, liar, *judge.links.values()):
        end.close()


def test_the_deadline_is_one_for_all_and_who_breaks_the_judge_is_named() -> None:
    """A judge that answers for the first worker and ends at the second one's."""
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(line=ours, log_tail=lambda: "", ending=lambda _: "killed by SIGKILL")
    client = JudgeClient(child, "attention_forward", "cpu", {})  # type: ignore[arg-type]
    asked = [wire.receive(theirs)]
    for _ in range(2):
        wire.send(theirs, {"ok": True})

    def end_after_the_second() -> None:
        asked.extend(wire.receive(theirs) for _ in range(3))
        theirs.close()

    judge = threading.Thread(target=end_after_the_second)
    judge.start()
    with pytest.raises(JudgeFailed) as failed:
        client.prime(["a", "b"], 5.0, lambda *_: None)
    judge.join()
    ours.close()
    assert failed.value.worker == "b"
    assert [message["op"] for message in asked] == [
        "start",
        "prime",
        "profiler_started",
        "profiler_started",
    ]
    assert asked[3]["timeout_s"] <= asked[2]["timeout_s"] <= 5.0


def test_who_keeps_the_judge_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge answers for the second worker only when that one is ended."""
    monkeypatch.setattr(judge_client, "TURN_SPARE_S", 0.05)
    ours, theirs = socket.socketpair()
    client = JudgeClient(SimpleNamespace(line=ours), "attention_forward", "cpu", {})  # type: ignore[arg-type]
    ended = []

    def end(name: str, deadline_s: float) -> None:
        ended.append(name)
        wire.send(theirs, {"ok": True})

    for _ in range(2):
        wire.send(theirs, {"ok": True})
    client.prime(["a", "b"], 0.0, end)
    assert ended == ["b"]
    ours.close()
    theirs.close()
