"""A check of a stranger's text in a fork that ends with it: with little time, little memory.

Python's parser runs none of what it reads, but what it takes is the author's choice: half a
megabyte can cost a minute, or the stack. Here that ends the fork, and its file is refused.
"""

import contextlib
import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from harness.errors import SubmissionError
from harness.process import process_tree

MOST_CPU_S = 3  # an honest file of the greatest size takes a fifth of it
MOST_WAIT_S = 60.0  # on a machine that has much else to do
MOST_MEMORY_BYTES = 1 << 30  # beside what this process has already


def checked_apart(check: Callable[[], bool], name: str) -> bool:
    """What `check` says in a fork; raises the SubmissionError that it raises.

    One of its own tells what the fork died of; `name` is what it calls the file.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the fork has none of
        pid = os.fork()
    if pid == 0:
        _answer(check, writing)
    os.close(writing)
    try:
        told = _read_all(reading, time.monotonic() + MOST_WAIT_S)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)  # ended, or too late
            os.waitpid(pid, 0)
    if not told:
        said = f"cannot be parsed within {MOST_CPU_S} s and {MOST_MEMORY_BYTES >> 20} MiB"
        hint = "write it shorter, or move parts to files that it imports"
        raise SubmissionError(f"{name}: {said}", hint)
    said = json.loads(told)
    if isinstance(said, bool):
        return said
    raise SubmissionError(*said)


def _answer(check: Callable[[], bool], writing: int) -> None:
    """The fork: whatever happens in it, it ends here."""
    try:
        process_tree.die_with_parent()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + MOST_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            said: bool | list[str] = check()
        except SubmissionError as cause:
            said = [cause.message, cause.hint]
        os.write(writing, json.dumps(said).encode())  # a pipe takes it, or is being read
    finally:
        os._exit(0)


def _read_all(reading: int, deadline: float) -> bytes:
    """All that comes before the deadline and the other side's end; nothing of what is late."""
    parts: list[bytes] = []
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (part := os.read(reading, 1 << 16)):
            return b"".join(parts)
        parts.append(part)
    return b""
