"""The engine of one host: a slot for every GPU, one unit at a time in each, one thread for all."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from harness.campaign.executor import MODULE, READ_BYTES, LineReader, Told, gone
from harness.campaign.unit import Unit, to_text
from harness.errors import Exit
from harness.process.project import HOME
from harness.process.text import plain_text

COMMAND = (sys.executable, "-m", MODULE)
GRACE_S = 30.0  # for a cancelled unit to write its rows and end its processes
FAULTS_IN_A_ROW = 3  # after which a GPU gets no more work, while there is another
#: Units of a host do not begin at the same moment. The driver opens one context at a time for all
#: GPUs (0.17 s each, and a unit of eight opens eleven): of units that begin together each would
#: wait for the contexts of all.
START_GAP_S = 2.0


@dataclass
class Slot:
    """One GPU (or one CPU place), named as the child's --gpu wants it."""

    gpu: str
    builds: bool = False  # a place for builders, without a GPU
    faults: int = 0  # in a row
    child: "_Running | None" = None

    @property
    def opens_contexts(self) -> bool:
        """Whether units here use a GPU."""
        return not self.builds and self.gpu != "none"


@dataclass(eq=False)
class _Running:
    unit: Unit
    slot: Slot
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    errors: IO[bytes]
    lines: LineReader
    kill_at: float = float("inf")


class Local:
    """Processes of this host. `gpus`: NVML indices as text, or `none` once for every CPU place."""

    def __init__(
        self, gpus: Sequence[str], builders: int = 0, command: Sequence[str] = COMMAND
    ) -> None:
        self.command = tuple(command)
        self.slots = [Slot(gpu) for gpu in gpus]
        self.slots += [Slot(gpus[0], builds=True) for _ in range(builders)]
        self.places = self.window = len(gpus)
        self._waiting: deque[Unit] = deque()
        self._next_start = 0.0
        self._said: list[Told] = []

    def submit(self, unit: Unit) -> None:
        """Queue it; the next `poll` starts it if a slot is free."""
        self._waiting.append(unit)

    def poll(self, timeout_s: float) -> list[Told]:
        """Start what can start, read what was told, bury what has ended."""
        self._fill()
        said, self._said = self._said, []
        running = self._children()
        if (running or self._waiting) and not said:
            with selectors.PollSelector() as told:  # epoll's watches an entrant could use up
                for child in running:
                    told.register(child.stdout, selectors.EVENT_READ, child)
                for key, _ in told.select(timeout_s):
                    said += self._read(key.data)
        for child in running:
            if time.monotonic() > child.kill_at:
                _kill(child.process)
        return said

    def cancel(self, label: str) -> None:
        """Let it end as by Ctrl-C, by force after a while."""
        for unit in [unit for unit in self._waiting if unit.label == label]:
            self._waiting.remove(unit)
            self._said.append(gone(label, "cancelled before it began"))
        for child in self._children():
            if child.unit.label == label:
                self._close_pipes(child)

    def close(self) -> None:
        """End all, politely first."""
        self._waiting.clear()
        for child in self._children():
            self._close_pipes(child)
        while self._children():
            self.poll(0.2)

    def _children(self) -> list[_Running]:
        return [slot.child for slot in self.slots if slot.child]

    def _fill(self) -> None:
        alive = [slot for slot in self.slots if slot.faults < FAULTS_IN_A_ROW]
        if all(slot.builds for slot in alive):  # the units' fault or the host's: not one GPU's
            alive = self.slots
        places = {slot.gpu for slot in alive if not slot.builds}
        for slot in alive:
            mine = (unit for unit in self._waiting if (unit.task == "build") == slot.builds)
            # not where it died before, unless there is no other place
            gpu = None if slot.builds else slot.gpu
            fit = next((u for u in mine if gpu not in u.avoid or places <= set(u.avoid)), None)
            soon = slot.opens_contexts and time.monotonic() < self._next_start  # others open theirs
            if slot.child is None and fit is not None and not soon:
                self._waiting.remove(fit)
                try:
                    self._start(fit, slot)
                except OSError as cause:  # entrants of our user can leave us without
                    said = f"no process can be had: {cause}"
                    self._said.append(gone(fit.label, said, slot.gpu))

    def _start(self, unit: Unit, slot: Slot) -> None:
        if slot.opens_contexts:
            self._next_start = time.monotonic() + START_GAP_S
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the unit is gone
        process = subprocess.Popen(
            [*self.command, "--gpu", slot.gpu],
            cwd=HOME,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        assert process.stdin
        assert process.stdout
        slot.child = _Running(unit, slot, process, process.stdout, errors, LineReader(unit))
        with contextlib.suppress(OSError):  # it died at once: its stdout will say so
            process.stdin.write(to_text(unit).encode() + b"\n")
        self._said.append(Told(unit.label, {"op": "began"}))

    def _read(self, child: _Running) -> list[Told]:
        if not (data := os.read(child.stdout.fileno(), READ_BYTES)):
            return [self._reap(child)]
        return child.lines.hear(data)

    def _reap(self, child: _Running) -> Told:
        """Its stdout is closed: wait for it, free its slot, say how it ended."""
        try:
            code = child.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _kill(child.process)
            code = child.process.wait()
        why = _ending(code, child.errors) if code else ""
        for file in filter(None, (child.process.stdin, child.stdout, child.errors)):
            with contextlib.suppress(OSError):
                file.close()
        cancelled = child.kill_at < float("inf")
        if code != Exit.SUBMISSION_FAILED:  # a folder that changed tells nothing of the GPU
            child.slot.faults = child.slot.faults + 1 if why and not cancelled else 0
        child.slot.child = None
        return gone(child.unit.label, why, child.slot.gpu)

    def _close_pipes(self, child: _Running) -> None:
        with contextlib.suppress(OSError):
            if child.process.stdin:
                child.process.stdin.close()
        child.kill_at = min(child.kill_at, time.monotonic() + GRACE_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Its judge and workers end with it: each asked the kernel for that."""
    if process.returncode is None:  # else its number can be another's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int, errors: IO[bytes]) -> str:
    with contextlib.suppress(OSError, ValueError):
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - 2000))
        text = plain_text(errors.read().decode(errors="replace"))
        last = text.splitlines()[-1] if text else ""
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the unit's process ended: {how}" + (f"; {last}" if last else "")
    return f"the unit's process ended with {code}"
