"""Profilers are set up in many workers at once, each once, and only while its worker runs."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.engine.guards.quiet import Quiet
from harness.engine.timing import prime
from harness.judge.burst import Desk
from harness.judge.judge import Judge
from harness.process import wire
from harness.schema import Limits
from harness.worker.__main__ import Worker


class Stage:
    """Seats that note when they run, and a judge that notes who ran when it asked."""

    def __init__(self, *names: str) -> None:
        self.running: set[str] = set()
        self.asked: list[list[str]] = []
        self.seats = {name: self.seat(name) for name in names}
        self.roles = SimpleNamespace(null="null")
        self.limits = Limits()
        self.quiet = Quiet()
        self.judge = SimpleNamespace(prime=self.primed)

    def seat(self, name: str) -> Any:
        child = SimpleNamespace(
            pid=1,
            resume=lambda: self.running.add(name),
            pause=lambda: self.running.discard(name),
        )
        return SimpleNamespace(label=f"{name}-1", primed="", attached=True, child=child, held=set())

    def primed(self, labels: list[str], timeout_s: float) -> None:
        assert {f"{name}-1" for name in self.running} == set(labels)
        self.asked.append(labels)


def test_all_at_once_and_nobody_twice() -> None:
    stage = Stage("a", "b", "null")
    prime(stage, list(stage.seats))  # type: ignore[arg-type]
    prime(stage, list(stage.seats))  # type: ignore[arg-type]
    assert stage.asked == [["a-1", "b-1"]]
    assert not stage.running


def test_a_replacement_has_no_profiler_yet() -> None:
    stage = Stage("a", "b")
    prime(stage, list(stage.seats))  # type: ignore[arg-type]
    stage.seats["b"].label = "b-2"
    stage.primed = stage.asked.append  # type: ignore[assignment]
    stage.judge = SimpleNamespace(prime=lambda labels, _: stage.asked.append(labels))
    prime(stage, list(stage.seats))  # type: ignore[arg-type]
    assert stage.asked[1:] == [["b-2"]]


def test_who_dies_or_lies_does_not_stop_the_others(tmp_path: Path) -> None:
    """Three workers: one answers, one is gone, one says something else; the judge waits for no more than that."""
    judge = Judge("attention_forward", "cpu")
    theirs = []
    for name in ("good", "gone", "liar"):
        ours, other = socket.socketpair()
        judge.desks[name] = Desk(ours, "host", (4096, 4096))
        theirs.append(other)
    good, gone, liar = theirs
    gone.close()
    wire.send(liar, {"op": "done"})
    worker = Worker(lambda: None, tmp_path, "cpu")
    thread = threading.Thread(target=lambda: wire.send(good, worker.handle(wire.receive(good))))
    thread.start()
    answer = judge.handle({"op": "prime", "workers": ["gone", "liar", "good"], "timeout_s": 5}, [])
    thread.join()
    assert answer == {"ok": True}
    for end in (good, liar, *judge.desks.values()):
        end.close()
