"""A fork of the fork server is as bare as a process of its own, and dies, ends and is replaced like one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.engine.assign_roles import own_folder
from harness.process import process_tree
from harness.process.child import Child, Jail, bare_env
from harness.process.forkserver import WORKER_NAME, ForkServer
from harness.process.sandbox import namespaces
from harness.process.sandbox.enter import lacking

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = json.dumps({"name": "spy", "author": "a", "description": "d", "language": "pytorch"})
#: Tells at import what a submission could see of the process that it was forked from.
SPY = """
import json, os, sys
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
facts = {"env": dict(os.environ), "links": links, "session": os.getsid(0), "ppid": os.getppid(),
         "pid": os.getpid(), "argv": sys.argv, "cwd": os.getcwd(), "outside": outside,
         "first": Path("/proc/self/environ").read_text(), "threads": len(os.listdir("/proc/self/task")),
         "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix]}
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


def start(forkserver: ForkServer, house: Path, folder: Path, level: int = 0) -> Child:
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
    words = ["--folder", str(places["source"]), "--manifest", MANIFEST, "--device", "cpu"]
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
    other = start(forkserver, house, tmp_path / "other", level)
    child = start(forkserver, house, tmp_path / "mine", level)
    facts = facts_of(tmp_path / "mine")
    if level == 2:  # the first process of its namespaces is the one that we wait for
        assert (facts["pid"], facts["ppid"], facts["session"]) == (2, 1, 1)
    else:
        assert facts["pid"] == facts["session"] == child.pid
        assert facts["ppid"] == os.getpid()  # adopted: an exit code reaches the engine
    assert facts["argv"] == ["submission.py"]
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


@each_level
def test_a_killed_nursery_is_replaced(
    forkserver: ForkServer, house: Path, tmp_path: Path, level: int
) -> None:
    first = start(forkserver, house, tmp_path / "first", level)
    os.kill(forkserver.pid, signal.SIGKILL)
    forkserver.process.wait()
    second = start(forkserver, house, tmp_path / "second", level)
    assert first.alive  # it is no child of the fork server
    assert facts_of(tmp_path / "second")["argv"] == ["submission.py"]
    first.end()
    second.end()


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
    child.resume()
    assert beaten() > 0
    assert not [pid for pid in child.pids() if state(pid) == "Z"][40:], "the first process reaps"
    child.end()
    assert beaten() == 0
    assert not set(process_tree.children(os.getpid())) - before


def state(pid: int) -> str:
    """Letter of a process's state, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
