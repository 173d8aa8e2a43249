"""The order in which a run gets ready: a plain .cu is compiled while its worker and the others get torch."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from harness.engine import session
from harness.engine.guards.quiet import Quiet
from harness.engine.processes.worker_process import WorkerProcess
from harness.measure.verdict import Evidence
from harness.schema import Machine, Manifest, Status


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `prepare` does, in order; starting a worker takes until every .cu is being built."""
    steps: list[str] = []
    building = threading.Event()

    def build_one(run: object, worker: SimpleNamespace) -> None:
        steps.append(f"build {worker.name}")
        if worker.compiles_alone:
            building.set()

    def start_all(run: object, workers: list[SimpleNamespace]) -> None:
        assert building.wait(30), "no .cu was built before the first worker had its torch"
        steps.append(f"start {' '.join(worker.name for worker in workers)}")

    for name, stand_in in (
        ("preflight", lambda *_: None),
        ("needs_build", lambda worker, _: worker.builds),
        ("build_one", build_one),
        ("start_all", start_all),
        ("may_start", lambda _, worker: not worker.fails),
    ):
        monkeypatch.setattr(session, name, stand_in)
    return steps


def worker(
    name: str, builds: bool = True, alone: bool = False, fails: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(name=name, builds=builds, compiles_alone=alone, fails=fails)


def prepare(told: list[str], *workers: SimpleNamespace) -> None:
    for each in workers:
        each.end = lambda name=each.name: told.append(f"end {name}")
    run = SimpleNamespace(
        workers={each.name: each for each in workers},
        judge=SimpleNamespace(
            wait_ready=lambda: told.append("judge"),
            shares_memory=True,
            child=SimpleNamespace(pid=1),
        ),
        quiet=Quiet(),
        facts=SimpleNamespace(machine=SimpleNamespace(has_gpu=True)),
        suite=SimpleNamespace(device="gpu"),
    )
    session.prepare(run, SimpleNamespace(sandbox=0))


def test_a_plain_cu_waits_for_nobody(told: list[str]) -> None:
    others = worker("triton"), worker("sdpa", builds=False), worker("more")
    prepare(told, *others, worker("cu", alone=True))
    assert told.index("build cu") < told.index("start sdpa cu")
    assert sorted(told[:4]) == ["build cu", "build more", "build triton", "start sdpa cu"]
    assert told[4:] == ["start triton more", "judge"]


def test_a_worker_whose_kernel_does_not_compile_is_ended(told: list[str]) -> None:
    prepare(told, worker("cu", alone=True, fails=True), worker("good", alone=True))
    assert told[-2:] == ["end cu", "judge"]
    assert "end good" not in told


def test_workers_are_told_how_many_are_asked_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "may_start", lambda _, worker: not worker.fails)
    places: dict[str, int] = {}
    workers = [worker("first"), worker("failed", fails=True), worker("second"), worker("third")]
    for each in workers:
        each.entrant = SimpleNamespace(name=each.name)
        each.start = lambda place, name=each.name: places.update({name: place})
    run = SimpleNamespace(observer=SimpleNamespace(stage=lambda *_: None))
    session.start_all(run, workers)
    assert places == {"first": 0, "second": 1, "third": 2}


def test_all_workers_are_killed_before_one_is_waited_for() -> None:
    did: list[str] = []
    children = [
        SimpleNamespace(
            kill=lambda n=n: did.append(f"kill {n}"), end=lambda n=n: did.append(f"end {n}")
        )
        for n in (1, 2)
    ]
    workers = [WorkerProcess(*[MagicMock()] * 4) for _ in range(3)]
    workers[0]._child, workers[2]._child = children  # type: ignore[assignment]
    WorkerProcess.end_all(workers)
    assert did == ["kill 1", "kill 2", "end 1", "end 2"]


def test_a_cuda_kernel_without_a_gpu_is_told_what_it_needs() -> None:
    """Not the traceback of its import: `init --template cuda` on a laptop."""
    case = SimpleNamespace(name="one")
    manifest = Manifest(name="mine", language="cuda", needs={"compute_capability": "8.0"})
    known = Evidence(SimpleNamespace(manifest=manifest), case)
    run = SimpleNamespace(
        workers={"mine": SimpleNamespace(entrant=known.entrant, unmade="")},
        suite=SimpleNamespace(cases=[case]),
        record=lambda name, case: known,
    )
    session.preflight(run, SimpleNamespace(machine=Machine()))
    assert (known.status, known.reason) == (Status.UNAVAILABLE, "needs a GPU of capability 8.0")


def test_the_commit_of_the_harness_is_asked_of_git_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *who, *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "file").write_text("one")
    (tmp_path / "notes").write_text("one")
    git("init", "-q")
    git("add", "harness")
    git("commit", "-qm", "first")
    head, asked, real = git("rev-parse", "HEAD")[:12], [], subprocess.run
    monkeypatch.setattr(session, "HOME", tmp_path)
    monkeypatch.setattr(session.project, "is_project", lambda _: True)
    monkeypatch.setattr(session.subprocess, "run", lambda *a, **k: asked.append(a) or real(*a, **k))
    assert session.harness_commit() == head, "what lies outside harness/ is not asked about"
    assert len(asked) == 1
    (tmp_path / "harness" / "new").touch()
    assert session.harness_commit() == f"{head}+"
    git("add", "harness")
    git("commit", "-qm", "second")
    (tmp_path / "harness" / "file").write_text("two")
    assert session.harness_commit().endswith("+")
    assert session.harness_commit()[:12] != head
    monkeypatch.setenv("ATTNBOARD_COMMIT", "told")
    monkeypatch.setattr(session, "HOME", tmp_path / "harness" / "nowhere")
    assert session.harness_commit() == "told"
