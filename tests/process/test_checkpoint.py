"""The driver's lock, through a stand-in library that a C compiler makes: no GPU is needed."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from harness.process.cuda.checkpoint import Checkpoint, Held

#: Pid 1 locks, 2 has work that does not end, 3 is no CUDA process, 4 never answers; others echo the deadline.
SOURCE = """
#include <unistd.h>
#include <string.h>
typedef struct { unsigned timeout_ms, reserved0; unsigned long long reserved1[7]; } Lock;
int cuCheckpointProcessLock(int pid, Lock *args) {
    static const Lock none;
    if (args->reserved0 || memcmp(args->reserved1, none.reserved1, sizeof none.reserved1)) return 1;
    if (pid == 1) return 0;
    if (pid == 2) return 600;
    if (pid == 3) return 3;
    if (pid == 4) sleep(60);
    return args->timeout_ms;
}
int cuCheckpointProcessUnlock(int pid, unsigned long long *args) {
    for (int i = 0; i < 8; i++) if (args[i]) return 1;
    return pid == 1 ? 0 : 401;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(SOURCE)
    words = [compiler, "-shared", "-fPIC", "-o", "libcuda.so", "driver.c"]
    subprocess.run(words, cwd=folder, check=True)
    return folder / "libcuda.so"


@pytest.mark.parametrize(("pid", "held"), [(1, Held.LOCKED), (2, Held.BUSY), (3, Held.REFUSED)])
def test_what_the_driver_says(library: Path, pid: int, held: Held) -> None:
    assert Checkpoint(str(library)).lock(pid, 100).held is held


def test_the_deadline_reaches_the_driver_and_none_never_means_for_ever(library: Path) -> None:
    checkpoint = Checkpoint(str(library))
    assert checkpoint.lock(9, 123).code == 123
    assert checkpoint.lock(9, 0).code == 1


def test_a_driver_that_does_not_answer_is_left_behind(library: Path) -> None:
    began = time.monotonic()
    answer = Checkpoint(str(library)).lock(4, 100)
    assert answer.held is Held.SILENT
    assert answer.waited_ms >= 100
    assert time.monotonic() - began < 10


def test_unlocking(library: Path) -> None:
    checkpoint = Checkpoint(str(library))
    assert checkpoint.unlock(1)
    assert not checkpoint.unlock(2)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "nowhere.so" in Checkpoint(str(tmp_path / "nowhere.so")).missing
    assert "570" in Checkpoint("libc.so.6").missing
