"""Locks of processes on a GPU, the windows of inputs, shared memory, and the driver below them."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.process.cuda import driver as driver_module
from harness.process.cuda.arena_layout import ALIGN, aligned, runs, windows
from harness.process.cuda.checkpoint import Checkpoint, Held
from harness.process.cuda.driver import CudaDriver

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
typedef struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } Flags;
typedef struct { int type, handles; struct { int type, id; } location; void *windows; Flags flags; } Properties;
int cuMemGetAllocationGranularity(unsigned long *size, Properties *asked, int option) {
    static const Flags none;
    *size = 2 << 20;
    return !(sizeof *asked == 32 && option == 1 && asked->type == 1 && asked->handles == 1
             && asked->location.type == 1 && asked->location.id == 3 && !asked->windows
             && !memcmp(&asked->flags, &none, sizeof none));
}
int launch(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
           unsigned bytes, void *stream, void **arguments, void **extra) {
    return !(x == 1024 && y == 1 && z == 1 && bx == 1 && by == 2 && bz == 3 && bytes == 4
             && function == stream && *(long long *)arguments[1] == -1 && !extra);
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


MIB = 1 << 20
sizes = st.lists(st.integers(1, 9 * ALIGN), min_size=1, max_size=6)


@given(sizes, st.data(), st.integers(1, 6), st.integers(0, 2**62))
def test_every_window_lies_inside_its_run_and_runs_never_overlap(
    each: list[int], data: st.DataObject, tensors: int, seed: int
) -> None:
    alone = [data.draw(st.booleans()) for _ in each]
    placed = runs(each, alone, tensors)
    ends = [0] + [run.end for run in placed]
    assert all(run.start >= end and run.start % ALIGN == 0 for run, end in zip(placed, ends))  # noqa: B905 - one end more
    assert ends[-1] <= tensors * sum(map(aligned, each))  # fits where a burst's inputs fit
    for begins in windows(placed, 20, seed):
        for run, begin in zip(placed, begins, strict=True):
            assert 0 <= begin <= run.end - run.start - run.size
            assert begin % ALIGN == 0


def test_both_sides_find_the_same_and_another_seed_gives_others() -> None:
    placed = runs([MIB] * 3, [True] * 3, 4)
    first, again, other = (list(windows(placed, 50, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_thousands_of_calls_never_meet_the_same_two_arguments_again() -> None:
    """hdim256_seq16k: six tensors of 64 MiB each; who has k's place beside q's has 400,000 to choose from."""
    found = list(windows(runs([64 * MIB] * 3, [True] * 3, 6), 1500, 7))
    assert len({(q, k) for q, k, _ in found}) == len(found)
    assert len({q - k for q, k, _ in found}) > 0.99 * len(found)


def test_what_belongs_together_moves_together() -> None:
    """The backward's q, k, v, o and lse are of one forward; do is anybody's."""
    placed = runs([MIB, MIB // 64, MIB], [False, False, True], 3)
    begins = list(windows(placed, 60, 3))
    assert {(q // MIB, lse * 64 // MIB) for q, lse, _ in begins} == {(0, 0), (1, 1), (2, 2)}
    assert len({do for *_, do in begins}) > 50


SPECS = [((2, 3), "fp32"), ((1, 5), "fp16")]


@pytest.fixture
def arena():
    pytest.importorskip("torch")
    from harness.process.cuda.shared_memory import Arena

    made = Arena.create("host", 2 * ALIGN)
    yield made
    made.close()


def test_who_gets_the_descriptor_sees_the_same_bytes(arena):
    from harness.process.cuda.shared_memory import Arena

    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [arena.fd])
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
    there = Arena.open(arena.handle, fds[0])
    arena.close_fd()
    arena.carve(SPECS)[1].fill_(2.5)
    assert there.carve(SPECS)[1].tolist() == [[2.5] * 5]
    there.room.fill_(0)
    assert not arena.room.any()
    with pytest.raises(OSError, match="Bad file descriptor"):  # it keeps none open
        os.fstat(fds[0])


@pytest.mark.parametrize("size", [0, ALIGN, 4 * ALIGN])
def test_nobody_can_end_the_other_side_by_cutting_its_memory(arena, size):
    with pytest.raises(PermissionError):
        os.truncate(arena.fd, size)


@pytest.mark.parametrize("size", [0, 1, ALIGN + 1])
def test_there_is_room_for_what_was_asked(size):
    pytest.importorskip("torch")
    from harness.process.cuda.shared_memory import Arena

    made = Arena.create("host", size)
    assert made.room.numel() >= max(size, 1)
    assert not made.room.any()
    made.close()
    made.close()


def test_what_does_not_fit_is_said(arena):
    with pytest.raises(ValueError, match="arena of 2048 bytes is too small for 3 tensors"):
        arena.carve([((1, 8), "fp16")] * 3)


class Library:
    """A driver whose every call returns `code`."""

    def __init__(self, code):
        self.code = code

    def cuMemCreate(self, *_):  # noqa: N802
        return self.code

    def cuGetErrorName(self, _, place):  # noqa: N802
        ctypes.cast(place, ctypes.POINTER(ctypes.c_char_p))[0] = b"ITS_NAME"


def driver(code):
    made = CudaDriver.__new__(CudaDriver)
    made.lib = Library(code)
    return made


@pytest.mark.parametrize(("code", "kind"), [(2, MemoryError), (1, RuntimeError)])
def test_a_full_gpu_is_told_from_a_fault(code, kind):
    with pytest.raises(kind, match=rf"cuMemCreate: ITS_NAME \({code}\)") as caught:
        driver(code).call("cuMemCreate")
    assert type(caught.value) is kind


def test_a_call_that_succeeds_says_nothing():
    driver(0).call("cuMemCreate", 1)


def test_whole_numbers_reach_parameters_of_any_width(library: Path) -> None:
    """As of cuLaunchKernel: more than lie in registers, and 32 bits between others of 64."""
    made = CudaDriver.__new__(CudaDriver)
    made.lib = ctypes.CDLL(str(library))
    values = [ctypes.c_uint64(n) for n in (7, (1 << 64) - 1)]
    arguments = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    kernel = ctypes.c_void_p(1 << 40)
    made.call("launch", kernel, *(1024, 1, 1), *(1, 2, 3), 4, 1 << 40, arguments, None)


def test_what_is_asked_of_memory_lies_as_the_header_says(library: Path) -> None:
    made = CudaDriver.__new__(CudaDriver)
    made.lib, made.device = ctypes.CDLL(str(library)), 3
    assert made.whole(2 * MIB) == 2 * MIB
    assert made.whole(2 * MIB + 1) == 4 * MIB


def test_what_is_timed_lies_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Event:
        def __init__(self) -> None:
            self.name = f"event {len(made)}"
            made.append(self)

        def record(self) -> None:
            seen.append(self.name)

        def synchronize(self) -> None:
            seen.append(f"waited for {self.name}")

        def elapsed_time(self, end: Event) -> float:
            return 1.5 if (self.name, end.name) == ("event 0", "event 1") else -1.5

    made: list[Event] = []
    monkeypatch.setattr(driver_module, "timer", Event)
    assert driver_module.elapsed_ms(lambda: seen.append("work")) == 1.5
    assert seen == ["event 0", "work", "event 1", "waited for event 1"]
