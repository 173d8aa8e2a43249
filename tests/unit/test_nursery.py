"""A fork of the nursery is as bare as a process of its own, and dies, ends and is replaced like one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.isolate import Child, Jail, bare_env
from harness.nursery import WORKER_NAME, Nursery
from harness.sandbox import usual_level

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
         "first": Path("/proc/self/environ").read_text(), "threads": len(os.listdir("/proc/self/task"))}
Path(os.environ["ATTNBOARD_CACHE"], "facts.json").write_text(json.dumps(facts))
def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return q
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("house")
    (folder / "harness").symlink_to(ROOT / "harness")
    return folder


@pytest.fixture(scope="module")
def nursery(house: Path) -> Iterator[Nursery]:
    os.environ["PLANTED_SECRET"] = "x"
    made = Nursery(house, bare_env(house), house.parent / "nursery.log")
    yield made
    made.close()
    del os.environ["PLANTED_SECRET"]


def start(nursery: Nursery, house: Path, folder: Path) -> Child:
    """One worker that loads the spy; its cache is `folder`/cache."""
    places = {name: folder / name for name in ("cache", "scratch", "source")}
    for place in places.values():
        place.mkdir(parents=True)
    (folder / "outside.txt").write_text("secret")
    spy = SPY.replace("OUTSIDE", repr(str(folder / "outside.txt")))
    (places["source"] / "submission.py").write_text(spy)
    jail = Jail(**places, env={"TRITON_INTERPRET": "1"}, house=house, level=usual_level())
    words = ["--folder", str(places["source"]), "--manifest", MANIFEST, "--device", "cpu"]
    words += ["--function", "custom_attention_forward", "--problem", "attention_forward"]
    return Child("harness.worker", words, jail, folder / "log", nursery=nursery)


def facts_of(folder: Path) -> dict[str, Any]:
    """What the spy told; waits for it."""
    told = folder / "cache" / "facts.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if told.exists() and told.read_text().endswith("}"):
            return dict(json.loads(told.read_text()))
        time.sleep(0.01)
    raise AssertionError((folder / "log").read_text())


def test_a_fork_is_bare(nursery: Nursery, house: Path, tmp_path: Path) -> None:
    other = start(nursery, house, tmp_path / "other")
    child = start(nursery, house, tmp_path / "mine")
    facts = facts_of(tmp_path / "mine")
    assert facts["pid"] == facts["session"] == child.pid
    assert facts["ppid"] == os.getpid()  # adopted: an exit code reaches the engine
    assert facts["argv"] == ["submission.py"]
    assert facts["env"]["HOME"] == str(tmp_path / "mine" / "cache")
    assert "PLANTED_SECRET" not in facts["env"]
    assert "PLANTED_SECRET" not in facts["first"]
    sockets = [link for link in facts["links"] if link.startswith("socket:")]
    assert len(sockets) == 1, "the line to the judge and no other"
    assert not [link for link in facts["links"] if "nursery" in link or "other" in link]
    assert Path(f"/proc/{child.pid}/comm").read_text().strip() == WORKER_NAME
    child.end()
    other.end()
    assert child.log_tail() == "loaded"


@pytest.mark.skipif(usual_level() == 0, reason="this kernel has no Landlock")
def test_its_walls_are_up_before_it_loads(nursery: Nursery, house: Path, tmp_path: Path) -> None:
    child = start(nursery, house, tmp_path)
    facts = facts_of(tmp_path)
    child.end()
    assert facts["outside"] == "PermissionError"
    assert facts["cwd"] == str(tmp_path / "scratch")


def test_its_ending_is_known(nursery: Nursery, house: Path, tmp_path: Path) -> None:
    child = start(nursery, house, tmp_path)
    assert child.alive
    os.kill(child.pid, signal.SIGSEGV)
    assert child.ending(20) == "killed by SIGSEGV"
    child.end()


def test_a_killed_nursery_is_replaced(nursery: Nursery, house: Path, tmp_path: Path) -> None:
    first = start(nursery, house, tmp_path / "first")
    os.kill(nursery.pid, signal.SIGKILL)
    nursery.process.wait()
    second = start(nursery, house, tmp_path / "second")
    assert first.alive  # it is no child of the nursery
    assert facts_of(tmp_path / "second")["pid"] == second.pid
    first.end()
    second.end()
