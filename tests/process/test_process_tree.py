"""Nobody reads our memory, nothing that was started stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.process import process_tree

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux calls")


def python(code: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter: these calls change the process that makes them."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_children_and_descendants_see_a_process_in_another_session() -> None:
    code = "import os,time\nif os.fork()==0:\n os.setsid()\n time.sleep(30)\ntime.sleep(30)"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20
        while not (found := process_tree.children(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        (child,) = found
        while os.getsid(child) == os.getsid(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.getsid(child) != os.getsid(process.pid)
        assert set(process_tree.descendants(os.getpid())) >= {process.pid, child}
    finally:
        process_tree.signal_tree(process.pid, process_tree.signal.SIGKILL)
        process.kill()
        process.wait()


DAEMON = """
import os, subprocess, sys, time
from harness.process import process_tree
assert process_tree.adopt_orphans()
before = process_tree.children(os.getpid())
escape = "import os,time\\nif os.fork()==0:\\n os.setsid()\\n if os.fork()==0:\\n  time.sleep(60)"
subprocess.run([sys.executable, "-c", escape], check=True)
deadline = time.monotonic() + 20
while not process_tree.children(os.getpid()) and time.monotonic() < deadline:
    time.sleep(0.01)
orphans = process_tree.children(os.getpid())
swept = process_tree.sweep(before)
print(len(orphans), len(swept), process_tree.children(os.getpid()))
"""


def test_a_double_fork_is_adopted_and_swept() -> None:
    done = python(DAEMON)
    orphans, swept, left = done.stdout.split()
    assert (int(orphans) >= 1, int(swept) >= 1, left) == (True, True, "[]"), done.stderr


def test_sweep_leaves_what_it_knows() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    try:
        assert process.pid not in process_tree.sweep(process_tree.children(os.getpid()))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_private_means_not_dumpable() -> None:
    code = (
        "import ctypes\nfrom harness.process import process_tree\nassert process_tree.set_undumpable()\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    assert python(code).stdout.strip() == "0"


def test_private_keeps_an_ordinary_user_out() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become an ordinary user")
    code = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from harness.process import process_tree
os.setuid(65534)
def readable():
    pid = os.getpid()
    if os.fork() == 0:
        try:
            open(f"/proc/{{pid}}/mem", "rb").close()
            os._exit(1)
        except OSError:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.wait()[1])
process_tree._libc.prctl(4, 1, 0, 0, 0)
open_before = readable()
process_tree.set_undumpable()
print(open_before, readable())
"""
    assert python(code).stdout.split() == ["1", "0"]
