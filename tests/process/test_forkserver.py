"""The fork server and the judge: started ahead, forked, ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import run
from harness.cli import run_options
from harness.cli.main import exit_code_of, parse_args
from harness.engine.assign_roles import own_folder
from harness.errors import HarnessError, UnavailableError
from harness.judge import __main__ as judge
from harness.process import prestart, process_tree, wire
from harness.process.child import Child, Jail, bare_env
from harness.process.forkserver import WORKER_NAME, ForkServer
from harness.process.sandbox import enter, namespaces
from harness.process.sandbox.enter import lacking
from harness.worker.__main__ import open_context, wait_for_cubins

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = json.dumps({"name": "spy", "author": "a", "description": "d", "language": "pytorch"})
#: Tells at import what a submission could see of the process that it was forked from.
SPY = """
import ctypes, json, os, re, sys
print("loaded", flush=True)
from pathlib import Path
links = []
for fd in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
try:
    outside = Path(OUTSIDE).read_text()
except OSError as cause:
    outside = type(cause).__name__
found = 0  # of a manifest that was asked for before, in what was copied from the fork server
for line in Path("/proc/self/maps").read_text().splitlines():
    span, mode, _, device, *_ = line.split()
    start, end = (int(x, 16) for x in span.split("-"))
    if mode == "rw-p" and device == "00:00" and end - start < 1 << 28 and "[stack" not in line:
        found += len(re.findall(b"a rival'[s]", ctypes.string_at(start, end - start)))
facts = {"found": found, "env": dict(os.environ), "links": links, "session": os.getsid(0), "ppid": os.getppid(),
         "pid": os.getpid(), "argv": sys.argv, "cwd": os.getcwd(), "outside": outside,
         "first": Path("/proc/self/environ").read_text(), "threads": len(os.listdir("/proc/self/task")),
         "stdin": os.get_inheritable(0), "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix]}
Path(os.environ["ATTNBOARD_CACHE"], "facts.json").write_text(json.dumps(facts))
def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return q
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "house"
    folder.mkdir()
    (folder / "harness").symlink_to(ROOT / "harness")
    return folder


@pytest.fixture(scope="module")
def forkserver(house: Path) -> Iterator[ForkServer]:
    os.environ["PLANTED_SECRET"] = "x"
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(house.parent / "bytecode")}
    made = ForkServer(house, bare_env(house) | kept, house.parent / "forkserver.log")
    yield made
    made.close()
    del os.environ["PLANTED_SECRET"]


each_level = pytest.mark.parametrize("level", [level for level in (0, 1, 2) if not lacking(level)])


def start(
    forkserver: ForkServer | None,
    house: Path,
    folder: Path,
    level: int = 0,
    manifest: str = MANIFEST,
) -> Child:
    """One worker that loads the spy; its cache is `folder`/cache."""
    places = {name: folder / name for name in ("cache", "scratch", "source")}
    for place in places.values():
        place.mkdir(parents=True)
    (folder / "outside.txt").write_text("secret")
    spy = SPY.replace("OUTSIDE", repr(str(folder / "outside.txt")))
    (places["source"] / "submission.py").write_text(spy)
    uid = namespaces.user_of("77") if level == 2 else None
    own_folder(places["cache"], os.geteuid() if uid is None else uid, 1)
    env = {"TRITON_INTERPRET": "1"}
    jail = Jail(**places, env=env, house=house, level=level, uid=uid, devices=())
    words = ["--folder", str(places["source"]), "--manifest", manifest, "--device", "cpu"]
    words += ["--function", "custom_attention_forward", "--problem", "attention_forward"]
    return Child("harness.worker", words, jail, forkserver)


def facts_of(folder: Path) -> dict[str, Any]:
    """What the spy told; waits for it."""
    told = folder / "cache" / "facts.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if told.exists() and told.read_text().endswith("}"):
            return dict(json.loads(told.read_text()))
        time.sleep(0.01)
    raise AssertionError("the spy told nothing")


@each_level
def test_a_fork_is_bare(forkserver: ForkServer, house: Path, tmp_path: Path, level: int) -> None:
    rivals = json.dumps(json.loads(MANIFEST) | {"description": "a rival's " * 300})
    other = start(forkserver, house, tmp_path / "other", level, rivals)
    child = start(forkserver, house, tmp_path / "mine", level)
    facts = facts_of(tmp_path / "mine")
    if level == 2:  # the first process of its namespaces is the one that we wait for
        assert (facts["pid"], facts["ppid"], facts["session"]) == (2, 1, 1)
    else:
        assert facts["pid"] == facts["session"] == child.pid
        assert facts["ppid"] == os.getpid()  # adopted: an exit code reaches the engine
    assert facts["argv"] == ["submission.py"]
    assert facts["found"] == 0, "of whom it was asked for before nothing is left in its memory"
    assert facts["stdin"], "what it starts has one, too"
    assert facts["bytecode"] == [True, None], "it neither reads nor writes the fork server's"
    assert facts["env"]["HOME"] == str(tmp_path / "mine" / "cache")
    assert "PLANTED_SECRET" not in facts["env"]
    assert "PLANTED_SECRET" not in facts["first"]
    sockets = [link for link in facts["links"] if link.startswith("socket:")]
    assert len(sockets) == 1, "the line to the judge and no other"
    assert not [link for link in facts["links"] if "forkserver" in link or "other" in link]
    assert Path(f"/proc/{child.pids()[-1]}/comm").read_text().strip() == WORKER_NAME
    child.end()
    other.end()
    assert child.log_tail() == "loaded"


@each_level
def test_its_walls_are_up_before_it_loads(
    forkserver: ForkServer, house: Path, tmp_path: Path, level: int
) -> None:
    child = start(forkserver, house, tmp_path, level)
    facts = facts_of(tmp_path)
    child.end()
    assert facts["outside"] == ("secret", "PermissionError", "FileNotFoundError")[level]
    assert facts["cwd"] == str(tmp_path / "scratch")


@each_level
def test_its_ending_is_known(
    forkserver: ForkServer, house: Path, tmp_path: Path, level: int
) -> None:
    child = start(forkserver, house, tmp_path, level)
    facts_of(tmp_path)
    assert child.alive
    os.kill(child.pids()[-1], signal.SIGSEGV)
    assert child.ending(20) == "killed by SIGSEGV"
    child.end()


@pytest.mark.parametrize("level", [level for level in (0, 2) if not lacking(level)])
def test_a_killed_nursery_is_replaced(
    forkserver: ForkServer, house: Path, tmp_path: Path, level: int
) -> None:
    first = start(forkserver, house, tmp_path / "first", level)
    os.kill(forkserver.process.pid, signal.SIGKILL)
    forkserver.process.wait()
    second = start(forkserver, house, tmp_path / "second", level)
    assert first.alive  # it is no child of the fork server
    assert facts_of(tmp_path / "second")["argv"] == ["submission.py"]
    first.end()
    second.end()


def test_where_no_process_can_be_had_nobody_broke_the_run(
    forkserver: ForkServer, house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    os.kill(forkserver.process.pid, signal.SIGKILL)
    forkserver.process.wait()
    ours, theirs = socket.socketpair()
    for missing in ("subprocess.Popen", "socket.socketpair"):
        with monkeypatch.context() as patch:
            patch.setattr(f"harness.process.forkserver.{missing}", none)
            with pytest.raises(HarnessError, match="temporarily unavailable"):
                forkserver.fork([], {}, enter.Rules(level=0), theirs, 2)
    ours.close()
    theirs.close()
    child = start(forkserver, house, tmp_path)
    assert facts_of(tmp_path)["argv"] == ["submission.py"], "it is tried again"
    child.end()


#: Eight processes that fork, end and so replace each other before they can be stopped by name.
HOPPER = """
import os, sys
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
            with open(os.environ["ATTNBOARD_CACHE"] + "/beats", "ab") as beats:
                beats.write(b".")
"""


@pytest.mark.skipif(bool(lacking(2)), reason=lacking(2))
def test_what_forks_faster_than_it_can_be_signalled_is_stopped_and_ends_with_its_worker(
    forkserver: ForkServer, house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SPY", HOPPER + SPY)
    before = set(process_tree.children(os.getpid()))
    child = start(forkserver, house, tmp_path, 2)
    facts_of(tmp_path)
    beats = tmp_path / "cache" / "beats"

    def beaten() -> int:
        before = beats.stat().st_size
        time.sleep(0.3)
        return beats.stat().st_size - before

    assert beaten() > 0
    child.pause()
    assert beaten() == 0
    with child.still():
        pass
    assert beaten() == 0, "who is stopped stays so"
    child.resume()
    assert beaten() > 0
    with child.still():
        assert beaten() == 0
        assert child.pids() == child.pids()
    assert beaten() > 0
    assert not [pid for pid in child.pids() if state(pid) == "Z"][40:], "the first process reaps"
    child.end()
    assert beaten() == 0
    assert not set(process_tree.children(os.getpid())) - before


@pytest.mark.skipif(bool(lacking(2)), reason=lacking(2))
def test_who_was_launched_alone_is_waited_for_with_all_of_its_namespaces(
    house: Path, tmp_path: Path
) -> None:
    """Builders ahead: each left its first process, unwaited for, until the run's end."""
    process_tree.adopt_orphans()
    child = start(None, house, tmp_path, 2)
    facts_of(tmp_path)
    below = child.pids()
    assert len(below) >= 3, "the launcher, the first process, the worker"
    child.end()
    assert [state(pid) for pid in below] == [""] * len(below)


def state(pid: int) -> str:
    """Letter of a process's state, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Pretended:
    """A hall without processes."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def halls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prestart.end_waiting()  # what another file's test began and did not take
    monkeypatch.setattr(prestart, "TrustedProcesses", Pretended)
    yield
    prestart.end_waiting()


@pytest.mark.usefixtures("halls")
@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("--submission mine", True),
        ("-s mine --gpu 1", True),
        ("run --submission=mine", True),
        ("triton_template --suite smoke", True),
        ("--submission mine --gpus all", False),
        ("--submission mine --engine=local", False),
        ("--submission mine --blocks 0", False),
        ("--help", False),
        ("completion bash", False),
        ("", False),
    ],
)
def test_only_one_run_of_this_machine_starts_early(
    words: str, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as its words are understood: what follows imports for a third of a second."""

    def machine_of(args: object) -> NoReturn:
        assert bool(prestart._waiting) == starts
        raise UnavailableError("reached", "")

    monkeypatch.setattr(run_options, "machine_of", machine_of)
    exit_code_of(lambda: run.main(parse_args(words.split())))
    assert bool(prestart._waiting) == starts


@pytest.mark.usefixtures("halls")
def test_a_run_takes_what_was_begun_and_the_next_begins_anew() -> None:
    prestart.start_next()
    (begun,) = prestart._waiting
    with prestart.taken() as first, prestart.taken() as second:
        assert first is begun
        assert second is not begun
        assert not begun.closed
    assert (first.closed, second.closed) == (True, True)


def test_nothing_is_left_of_a_hall_that_nobody_took() -> None:
    prestart.end_waiting()
    prestart.start_next()
    (trusted,) = prestart._waiting
    assert trusted.judge.alive
    assert trusted.forkserver.process.poll() is None
    prestart.end_waiting()
    assert not trusted.judge.alive
    assert trusted.forkserver.process.poll() is not None
    assert not trusted.scratch.exists()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("process.prestart", "pydantic"), ("cli.main", "pydantic"), ("judge.__main__", "torch")],
)
def test_what_starts_first_imports_little(module: str, unwanted: str) -> None:
    code = f"import sys, harness.{module}; sys.exit({unwanted!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(("device", "opened"), [("cuda", ["0"]), ("cpu", [])])
def test_the_judge_opens_the_gpu_that_it_is_told(
    device: str, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "of the engine")
    monkeypatch.setattr(
        judge, "open_context", lambda: seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        opening = judge.Opening(theirs)
        opening.start()
        wire.send(ours, {"device": device, "env": {"CUDA_VISIBLE_DEVICES": "0"}})
        opening.join()
    assert seen == opened
    assert opening.start_message is not None


def test_the_judge_of_an_engine_that_has_gone_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        opening = judge.Opening(theirs)
        opening.start()
        opening.join()
    assert opening.start_message is None


def test_a_machine_without_a_driver_has_no_context() -> None:
    assert not judge.open_context("libno-such-driver.so.1")


def test_a_worker_waits_for_its_cubins_until_the_judge_speaks() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = threading.Thread(target=wait_for_cubins, args=(theirs, "cpu", 0.0), daemon=True)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        wire.send(ours, {"op": "map"})
        waiting.join(30)
        assert not waiting.is_alive()
        assert wire.receive(theirs, 1) == {"op": "map"}, "it was looked at, not taken"


def test_contexts_are_opened_in_the_order_in_which_the_judge_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    def select(read: list[Any], _: object, __: object, timeout_s: float) -> tuple[list[Any], ...]:
        waited.append(timeout_s)
        return read, [], []

    monkeypatch.setattr("torch.zeros", lambda *_, **__: None)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    monkeypatch.setattr("harness.worker.__main__.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("harness.worker.__main__.select.select", select)
    line: Any = object()
    for turn in (99.0, 100.0, 100.5):  # the submission took long to load; the first; the third
        open_context(line, turn)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    open_context(line, 101.0)  # the submission has opened it itself
    assert waited == [0.0, 0.0, 0.5]


def test_a_context_is_opened_before_its_turn_when_the_judge_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = threading.Event()
    monkeypatch.setattr("torch.zeros", lambda *_, **__: opened.set())
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turn = time.monotonic() + 60
        threading.Thread(target=open_context, args=(theirs, turn), daemon=True).start()
        assert not opened.wait(0.05)
        wire.send(ours, {"op": "map"})
        assert opened.wait(30)
