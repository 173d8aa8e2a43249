"""One at a time on a GPU: locks, the watch, shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.cuda.checkpoint import Checkpoint, Held

pytestmark = pytest.mark.gpu

WORKER = """
import sys
import torch
torch.zeros(1, device="cuda")
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "spin":
        torch.cuda._sleep(1 << 60)
    print("done", flush=True)
"""


class Worker:
    """A process with a context that does as it is told."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", WORKER]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.heard()

    def heard(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.heard()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    with made.process:  # closes its pipes
        yield made
        made.process.kill()


def test_an_idle_worker_is_locked_and_goes_on(worker: Worker) -> None:
    lock = Checkpoint()
    assert lock.missing == ""
    for _ in range(3):
        assert lock.lock(worker.pid, 500).held is Held.LOCKED
        os.kill(worker.pid, signal.SIGSTOP)
        os.kill(worker.pid, signal.SIGCONT)
        assert lock.unlock(worker.pid)
        assert worker.tell("rest") == "done"


def test_a_worker_that_spins_is_busy_and_one_that_is_stopped_is_silent(worker: Worker) -> None:
    lock = Checkpoint()
    worker.tell("spin")
    assert lock.lock(worker.pid, 100).held is Held.BUSY
    os.kill(worker.pid, signal.SIGSTOP)
    assert lock.lock(worker.pid, 100).held is Held.SILENT


def test_the_judge_sees_whether_it_is_alone_whatever_a_lock_says(worker: Worker) -> None:
    from harness.engine.burst import MOST_GAP_MS
    from harness.judge.alone import Watch

    def gap_ms() -> float:
        watch.begin()
        return watch.longest_gap_ms()

    watch = Watch()
    assert max(gap_ms() for _ in range(20)) < MOST_GAP_MS / 10
    worker.tell("spin")
    os.kill(worker.pid, signal.SIGSTOP)
    assert min(gap_ms() for _ in range(20)) > 2 * MOST_GAP_MS


ROOT = Path(__file__).resolve().parents[2]
LEGACY = """
import ctypes

def legacy_handle(driver, address):
    return driver.lib.cuIpcGetMemHandle((ctypes.c_char * 64)(), ctypes.c_uint64(address))
"""
PASSED_ON = (
    LEGACY
    + """
import os, socket, sys
import torch
from harness.process.cuda.shared_memory import Arena
from harness.process.cuda.driver import CudaDriver, keep_memory_private

keep_memory_private()
ours, theirs = socket.socketpair()
if os.fork() == 0:  # before any context
    _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
    arena = Arena.open({"kind": "device", "size": int(theirs.recv(32))}, fds[0])
    assert (arena.room == 7).all() and arena.table(4).tolist() == [1, 2, 3, 4]
    arena.room.add_(1)
    torch.cuda.synchronize()
    theirs.send(b"x")
    os._exit(0)
arena = Arena.create("device", 3 << 20)
arena.room.fill_(7)
arena.table(4).copy_(torch.tensor([1, 2, 3, 4]))
torch.cuda.synchronize()
assert arena.room.numel() >= 3 << 20
assert legacy_handle(CudaDriver(), arena.bytes.data_ptr()) != 0
assert legacy_handle(CudaDriver(), torch.empty(64 << 20, device="cuda").data_ptr()) != 0
socket.send_fds(ours, [b"x"], [arena.fd])
ours.send(str(arena.size).encode())
assert ours.recv(1) == b"x"
assert (arena.room == 8).all()
arena.close()
"""
)
HELD = """
import torch
from harness.process.cuda.shared_memory import Arena
from harness.process.cuda.driver import keep_memory_private
from harness.process.cuda.arena_layout import OUTPUT_SHARES, PIECE_BYTES, aligned
from harness.worker.held import FIRST_BURSTS, Held

keep_memory_private()
shape, count = (1, 8, 4096, 64), 4
size = 8 * 4096 * 64 * 2
share = aligned(count * size, PIECE_BYTES)
arena = Arena.create("device", OUTPUT_SHARES * share)
held = Held(arena)
start = arena.bytes.data_ptr()
pooled = lambda t: start + share <= t.data_ptr() < start + arena.room.numel()

def burst(call):
    held.prepare("plan", arena.carve([(shape, "fp16")] * count))
    results = []
    with held.lending():
        for number in range(count):
            results.append(call(number))
            held.keep(results[-1])
    held.tell(1)
    torch.cuda.synchronize()
    offsets = arena.table(count).tolist()
    for number, offset in enumerate(offsets):
        there = arena.room[offset : offset + size].view(torch.float16)
        assert (there == number).all(), number
    return [pooled(result) for result in results]

fresh = lambda n: torch.full(shape, float(n), device="cuda", dtype=torch.float16)
for _ in range(FIRST_BURSTS):
    assert burst(fresh) == [False] * 4
for _ in range(3):
    assert burst(fresh) == [True] * 4
assert not pooled(fresh(0))  # nothing of it outside a burst

def big(number):  # workspaces that do not fit beside the results, and stay cached
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    return fresh(number)

for _ in range(3):
    burst(big)
side = torch.cuda.Stream()

def elsewhere(number):
    with torch.cuda.stream(side):
        found = fresh(number)
    torch.cuda.current_stream().wait_stream(side)
    return found

assert burst(elsewhere) == [False] * 4  # copied, and right
static = fresh(0)
for _ in range(FIRST_BURSTS + 1):
    assert burst(static.fill_) == [False] * 4
"""


@pytest.mark.parametrize("script", [PASSED_ON, HELD], ids=["passed_on", "held"])
def test_in_a_process_of_its_own(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
