"""One worker's GPU work at a time: every other one is locked by the driver, then stopped.

hold       wait until what a worker and its children have queued is done, lock them, stop them
release    let them go on
strangers  processes on the GPU that are none of this run

SIGSTOP alone stops no kernel: what was launched before it runs on in everybody's turns. A stopped
process cannot be locked, so the lock comes first. Without a GPU, stopping is all there is to do.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.engine.processes.worker_process import WorkerProcess
from harness.measure.telemetry import Monitor
from harness.process import process_tree
from harness.process.child import Child
from harness.process.cuda.checkpoint import Answer, Checkpoint, Held
from harness.process.sandbox import usage
from harness.process.text import plain_text

#: How long work may run on behind a burst. An idle worker is locked within 2 ms; this is room for a
#: busy host.
LOCK_MS = 500
#: The same for a worker that has just loaded: what its import launched may end first.
LOADED_MS = 10_000
NOT_SUPPORTED = 801  # CUresult of a process that uses CUPTI
ROUNDS = 3  # of looking for a child that took the GPU while its parent was being locked


@dataclass(frozen=True)
class Rest:
    """How one worker came to rest; `fault` is empty if it did."""

    fault: str = ""
    waited_ms: float = 0.0  # for its queued work, the longest of its processes


class Quiet:
    """Who may use the GPU of one run; without a `monitor` of a GPU it only stops and resumes."""

    def __init__(
        self,
        monitor: Monitor | None = None,
        note: Callable[[str], object] = lambda text: None,
        checkpoint: Callable[[], Checkpoint] = Checkpoint,
    ) -> None:
        self.monitor, self.note = monitor, note
        self._told: set[str] = set()
        self.others: set[int] = set()  # whose /proc we do not see: of another user or container
        self.judge_pid = 0
        self.locked_once = False  # so that a refusal is its process's doing
        self.refused = False
        self._checkpoint = checkpoint() if monitor else None
        self.watches = bool(monitor)  # whether the judge can tell that it is alone
        if monitor and monitor.has_display:  # before any worker could draw
            self.watches = False
            said = "the judge does not watch for work that escapes the lock"
            self._tell(f"this GPU draws a display: {said}")

    def ready(self, judge_pid: int) -> None:
        """The judge has its context: can the driver lock, and does NVML tell our pids?"""
        self.judge_pid = judge_pid
        if self._checkpoint and not self.locks:
            self._tell_unlocked(self._checkpoint.missing)
        if self.monitor and self.blind:
            said = "NVML does not name this run's processes (a container with pids of its own?)"
            self._tell(f"{said}: work of others on the GPU cannot be seen")

    @property
    def locks(self) -> bool:
        """Whether the driver has the interface."""
        return self._checkpoint is not None and not self._checkpoint.missing

    @property
    def unlocked(self) -> bool:
        """Whether work could run on behind its turn in this run, which its rows must say."""
        return bool(self.monitor) and (not self.locks or (self.refused and not self.locked_once))

    @property
    def blind(self) -> bool:
        """Whether NVML lists no pids, or another namespace's: the judge is not among them."""
        return bool(self.monitor) and self.judge_pid not in self._listed()

    def hold(self, worker: WorkerProcess, loaded: bool = False) -> Rest:
        """Lock `worker` and all it started, then stop them; `loaded`: before its first turn."""
        timeout_ms, behind = (LOADED_MS, "its import") if loaded else (LOCK_MS, "its turn")
        child = worker.child
        if not self.locks:
            child.pause()
            return Rest()
        waited_ms = 0.0
        with child.signalled:  # the watch does not stop it meanwhile
            for _ in range(ROUNDS):
                child.resume()  # no stopped process is locked, and a worker can stop its children
                for pid in self._on_gpu(child) - worker.held:
                    answer = self._lock(worker, pid, timeout_ms)
                    waited_ms = max(waited_ms, answer.waited_ms)
                    if answer.held is not Held.LOCKED and pid in self._on_gpu(child):
                        whose = "its" if pid == child.pid else "a child process's"
                        if fault := self._fault(answer, whose, f"{timeout_ms} ms behind {behind}"):
                            return Rest(fault, waited_ms)
                child.pause()
                if self._on_gpu(child) <= worker.held or not self.locked_once:
                    return Rest("", waited_ms)
        return Rest("its processes take the GPU faster than they can be locked", waited_ms)

    def release(self, worker: WorkerProcess) -> bool:
        """Let `worker` and all it started go on; False if it cannot, by no fault of its own."""
        child = worker.child
        unlock = self._checkpoint.unlock if self._checkpoint else lambda pid: True
        with child.signalled:
            child.on_turn = True  # so the watch does not stop it: its time, and what runs on behind
            child.resume()
            held = {pid: unlock(pid) for pid in worker.held}
        worker.held.clear()
        return held.get(child.pid, True) or not child.alive

    def rescue_judge(self) -> None:
        """Unlock the judge: a worker of the same user could have locked it."""
        if self.locks and self._checkpoint:
            self._checkpoint.unlock(self.judge_pid)

    def strangers(self, workers: Iterable[WorkerProcess]) -> list[str]:
        """Others' processes on the GPU, as `1234 (python3)`; empty where NVML is blind."""
        listed = self._listed()
        known = {self.judge_pid, os.getpid()}
        for worker in workers:
            known |= worker.held | {child.pid for child in worker.children()}
        if self.judge_pid not in listed or listed <= known:
            return []
        # What a worker left behind is a descendant of ours: it is ended, and its worker answers for
        # it.
        unknown = listed - known - set(process_tree.descendants(os.getpid()))
        unknown -= self._ended(listed)
        return [f"{pid} ({_name(pid)})" for pid in sorted(unknown)]

    def ownerless(self) -> set[int]:
        """Processes on the GPU that have ended: a child of theirs has inherited the GPU's files.

        Their memory and kernels live on in it, unlocked. Empty where NVML is blind.
        """
        listed = self._listed()
        return self._ended(listed) if self.judge_pid in listed else set()

    # ------------------------------------------------------------------ inside

    def _ended(self, listed: set[int]) -> set[int]:
        """A zombie has; who tells nothing of itself (hidepid) and is there has not."""
        told = ((pid, set(usage.states(pid))) for pid in listed - self.others)
        return {
            p for p, now in told if not (now - usage.ENDED if now else os.path.exists(f"/proc/{p}"))
        }

    def _lock(self, worker: WorkerProcess, pid: int, timeout_ms: int) -> Answer:
        assert self._checkpoint
        answer = self._checkpoint.lock(pid, timeout_ms)
        if answer.held is Held.LOCKED:
            worker.held.add(pid)
            self.locked_once = True
        return answer

    def _fault(self, answer: Answer, whose: str, when: str) -> str:
        """Why an unlocked process on the GPU ends its entry; empty if the driver locks nobody."""
        if answer.held is Held.BUSY:
            return f"{whose} GPU work still ran {when}"
        if answer.held is Held.SILENT:
            return f"{whose} process did not answer the driver's lock {when}"
        if self.locked_once:
            hint = ": does it hold a profiler?" if answer.code == NOT_SUPPORTED else ""
            return f"the driver refuses to lock {whose} process (CUDA error {answer.code}){hint}"
        self.refused = True
        self._tell_unlocked(f"the driver refuses to lock a worker (CUDA error {answer.code})")
        return ""

    def _on_gpu(self, child: Child) -> set[int]:
        """Processes of a worker's tree that have the GPU open."""
        tree = set(child.pids())
        listed = self._listed()
        if self.judge_pid in listed:
            return tree & listed
        return {pid for pid in tree if has_device_open(pid)}

    def _listed(self) -> set[int]:
        return set(self.monitor.memory_by_pid()) if self.monitor else set()

    def _tell_unlocked(self, why: str) -> None:
        said = "a worker's kernels may run on behind its turn, so rows will say 'unlocked'"
        self._tell(f"{why}: {said}, not 'judged'")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.note(text)


def has_device_open(pid: int) -> bool:
    """Whether it holds the driver's memory device, as all with CUDA do; True if none may look."""
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError as cause:
        return isinstance(cause, PermissionError)
    for file in files:
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(file.readlink()) == "/dev/nvidia-uvm":
                return True
    return False


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return plain_text(Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace"))
    return "of another container or user"
