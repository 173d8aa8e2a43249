"""Nobody's kernels run in another's turn, tried on a GPU: the lock, and the watch behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

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
