"""What a record keeps of long words: head and tail of a message, and the log of a builder that failed."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.engine.processes import worker_process
from harness.engine.processes.worker_process import WorkerProcess
from harness.problems import get_problem
from harness.process import wire
from harness.process.child import Jail
from harness.schema import Entrant, Kind, Limits, Machine, Manifest, Status
from harness.worker.load import describe


def test_both_ends_of_a_long_message_are_kept(tmp_path: Path) -> None:
    reasons = "\n".join(f"operator {i}: not supported" for i in range(500))
    text = describe(RuntimeError(f"No operator found\n{reasons}\nthe last reason"), tmp_path)
    assert text.startswith("RuntimeError: No operator found")
    assert text.endswith("the last reason")
    assert 2900 < len(text) < 4000  # what the engine cuts at


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"op": "failed", "status": "UNSUPPORTED", "message": "no"}, Status.UNSUPPORTED),
        (None, Status.CRASHED),
        ({"op": "failed", "status": "PASSED", "message": "no"}, Status.CRASHED),
        ({"op": "built", "seconds": 10**399}, Status.INVALID_SUBMISSION),
        ({"op": "great"}, Status.INVALID_SUBMISSION),
    ],
)
def test_a_failed_builder_leaves_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: wire.Message | None, status: Status
) -> None:
    def child(module: str, *_: object, **__: object) -> SimpleNamespace:
        ours, theirs = socket.socketpair()
        if answer:
            wire.send(theirs, answer)
        theirs.close()
        log = "WARNING: can't load the extension"
        return SimpleNamespace(
            line=ours, end=ours.close, log_tail=lambda: log, ending=lambda: "exited with code 1"
        )

    monkeypatch.setattr(worker_process, "Child", child)
    manifest = Manifest(name="mine", language="cuda")
    entrant = Entrant(
        name="mine", kind=Kind.BASELINE, folder=tmp_path, manifest=manifest, source_sha256="0"
    )
    jail = Jail(tmp_path, tmp_path, {}, tmp_path, tmp_path)
    worker = WorkerProcess(entrant, get_problem("attention_forward"), "cuda", jail)
    told, _, _ = worker.build([], Limits(), Machine(gpu="none"))
    assert told is status
    assert worker.build_log == "WARNING: can't load the extension"
