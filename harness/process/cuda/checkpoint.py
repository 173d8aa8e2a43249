"""Holding a process's GPU work back from outside: the CUDA driver's checkpoint lock.

`lock` waits until all that a process has submitted to the GPU is done and holds back every later
CUDA call of it until `unlock`. It goes through libcuda by ctypes; the caller needs neither torch
nor a context, and with driver 580 not even cuInit. No answer may come: a stopped process is waited
for without end, whatever the deadline says, so every call is made on a thread that can be left
behind.

On one H200: an idle process is locked in 0.2 to 1.1 ms and unlocked in 0.2 to 1.5 (300 times each),
one with a thread that launches all the time in 0.4 to 2.0.
"""

import ctypes
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

SUCCESS, NOT_READY = 0, 600  # of CUresult (cuda.h)
#: What an answer may take beyond the driver's own deadline before it counts as none.
SPARE_S = 0.5


class Held(str, Enum):
    """What came of asking for one process to be locked."""

    LOCKED = "locked"  # all it had submitted is done, and nothing more can be
    BUSY = "busy"  # its work did not end before the deadline; it runs on
    SILENT = "silent"  # no answer: the process is stopped, or its driver thread is
    REFUSED = "refused"  # no CUDA in it (3), another user's or gone (304), locked already (401)


@dataclass(frozen=True)
class Answer:
    """The outcome, how long it took, and the driver's own code of it."""

    held: Held
    waited_ms: float
    code: int = 0


#: CUcheckpointLockArgs, whose first word is the deadline in ms, and CUcheckpointUnlockArgs; what is
#: reserved of both must be zero.
LockArgs, UnlockArgs = ctypes.c_uint * 16, ctypes.c_uint64 * 8


class Checkpoint:
    """The driver's interface; `missing` says why it cannot be had, or is empty."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.missing = ""
        try:
            driver: Any = ctypes.CDLL(library)
            self._lock = driver.cuCheckpointProcessLock
            self._unlock = driver.cuCheckpointProcessUnlock
        except OSError:
            self.missing = f"no {library} here"
        except AttributeError:
            self.missing = "this driver has no checkpoint interface (it came with 570)"

    def lock(self, pid: int, timeout_ms: int) -> Answer:
        """Hold back the GPU work of `pid` once what it has queued is done, within `timeout_ms`."""
        args = LockArgs(max(1, timeout_ms))  # 0 would be: for ever
        most_s = timeout_ms / 1e3 + SPARE_S
        code, waited_ms = _answered(lambda: self._lock(ctypes.c_int(pid), args), most_s)
        if code is None:
            return Answer(Held.SILENT, waited_ms)
        held = {SUCCESS: Held.LOCKED, NOT_READY: Held.BUSY}.get(code, Held.REFUSED)
        return Answer(held, waited_ms, code)

    def unlock(self, pid: int, timeout_s: float = 5.0) -> bool:
        """Let `pid` go on; False if the driver refuses or does not answer."""
        args = UnlockArgs()
        code, _ = _answered(lambda: self._unlock(ctypes.c_int(pid), args), timeout_s)
        return code == SUCCESS


def _answered(call: Any, timeout_s: float) -> tuple[int | None, float]:
    """What `call` returns after so many ms, or None if it has not by then; its thread stays behind.

    The thread tells the time: until one that waits for it runs, the watch may have had its turn.
    """
    told: list[tuple[int, float]] = []

    def timed() -> None:
        began = time.perf_counter()
        told.append((int(call()), (time.perf_counter() - began) * 1e3))

    thread = threading.Thread(target=timed, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return told[0] if told else (None, timeout_s * 1e3)
