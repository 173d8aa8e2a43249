"""What keeps processes apart and leaves nothing behind: Linux calls by ctypes, no torch."""

import contextlib
import ctypes
import functools
import os
import signal
import time
from collections.abc import Iterable, Iterator

from harness.errors import UnavailableError

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
libc = ctypes.CDLL(None, use_errno=True)


def checked(what: str, value: int, level: int) -> int:
    """`value` of a call of `libc`; UnavailableError where it failed: sandbox `level` lacks it."""
    if value < 0:
        why = os.strerror(ctypes.get_errno())
        raise UnavailableError(f"{what}: {why}", f"--sandbox {level} runs without")
    return value


def set_undumpable() -> bool:
    """Refuse ptrace, /proc/self/mem, environ to this user's others; root still may (prctl(2))."""
    return int(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)) == 0


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent ends, whatever session they fled to."""
    return int(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0


def die_with_parent() -> None:
    """End with the thread that started this process, even while stopped (man 2 prctl)."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def set_process_name(name: str) -> None:
    """What `top` and /proc/PID/comm call this process; 15 characters."""
    libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


@functools.cache
def hides_processes() -> bool:
    """Whether /proc does not tell us who is below one that may not be looked into (hidepid)."""
    if (child := os.fork()) == 0:
        try:
            die_with_parent()
            set_undumpable()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    hidden = not os.access(f"/proc/{child}/task/{child}/children", os.R_OK)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return hidden


def children(pid: int) -> list[int]:
    """Processes that `pid`'s threads started and that exist; empty if /proc does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all we want
            path = f"/proc/{pid}/task/{task}/children"
            with contextlib.suppress(OSError), open(path, "rb", 0) as told:
                found += map(int, told.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """`pid`'s children, theirs and so on, nearest first, whatever session they are in."""
    return [child for _, child in _below(pid)]


def _below(pid: int) -> Iterator[tuple[int, int]]:
    """(parent, child) of all of them, each as soon as it is seen."""
    seen, queue = set[int](), [pid]
    for parent in queue:
        for child in set(children(parent)) - seen:
            seen.add(child)
            queue.append(child)
            yield parent, child


def signal_tree(pid: int, number: signal.Signals) -> None:
    """Send `number` to everything below `pid`, also what left its session.

    To list hundreds takes a second, in which one may end and its number go to somebody else.
    """
    theirs = [(c, born) for p, c in _below(pid) if (born := _born(c))[:1] == [b"%d" % p]]
    for child, born in theirs:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if _born(child)[1:] == born[1:]:
                os.kill(child, number)


def _born(pid: int) -> list[bytes]:
    """Its parent's number, and when it began; empty if it is gone (man 5 proc_pid_stat)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb", 0) as told:
        return told.read().rpartition(b")")[2].split()[1:20:18]
    return []


def reap(pid: int, deadline: float) -> None:
    """Wait until child `pid` of this process has ended; for another one's not at all."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] != pid and time.monotonic() < deadline:
            time.sleep(0.002)


def sweep(known: Iterable[int], wait_s: float = 2.0) -> None:
    """Kill and reap adopted children of this process that are not in `known`.

    A killed parent's children are adopted one after the other, so it looks until nothing new comes.
    """
    mine, deadline = set(known), time.monotonic() + wait_s
    while strangers := [pid for pid in children(os.getpid()) if pid not in mine]:
        for pid in strangers:
            signal_tree(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            reap(pid, deadline)
        if time.monotonic() > deadline:
            break
