"""Start, watch, pause, limit and end one process of the run. Every ending becomes words.

A child gets its own session (so that one signal reaches all of its group), an allow-listed
environment, a log for stdout and stderr, and one socket. Its exit code is a fact about it, never
evidence for it.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.process import bytecode, process_tree
from harness.process.forkserver import ForkServer, started
from harness.process.project import HOME, private
from harness.process.sandbox import cgroup, enter, namespaces, readable, usage
from harness.process.scratch import locked
from harness.process.text import plain_text

LOG_BYTES, LOG_TAIL_BYTES = 64 << 20, 4096
#: A thread that is told to stop does so when it next leaves the kernel or gets a core; one that
#: ends ends, which takes a process with much memory its time on a busy host.
STOPPING_S, STOPPING_MS = 2.0, 10
ENDING_S = 60.0
WAITING_S = 0.2  # the same for who waits in the kernel and spends no time there
MARKS = 100
KEPT_ENV = {"PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "LANG", "LC_ALL", "TZ"}
KEPT_ENV |= {"VIRTUAL_ENV"}


@dataclass(frozen=True)
class Jail:
    """What a child may see: private folders, source, extra environment, how strictly."""

    cache: Path
    scratch: Path
    env: Mapping[str, str]
    source: Path
    house: Path  # holds a link to the package and nothing else; not the child's to write
    level: int = 0  # of harness/process/sandbox/enter.py
    uid: int | None = None  # whose processes they are at level 2, where we are root
    devices: tuple[Path, ...] | None = None  # of the GPU, at level 2; None: all there are
    processes: int = enter.Rules.processes
    memory_bytes: int = 0  # what all its processes may take; 0: no bound of the kernel
    shut: readable.DenyList = field(default_factory=lambda: readable.shut(*private(HOME)))


class Log:
    """What a child prints: memory of LOG_BYTES that nobody can make grow, and that lies on no disk.

    A file would share its disk with the whole run, which fallocate fills without a byte written.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("log", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        os.truncate(self.fd, LOG_BYTES)
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    @property
    def full(self) -> str:
        """That it took no more, in words; else an empty string."""
        return f"printed {LOG_BYTES >> 20} MiB, allowed less" if self.printed >= LOG_BYTES else ""

    @property
    def printed(self) -> int:
        """Bytes so far: how far the child has come, which shares our place in it."""
        return min(os.lseek(self.fd, 0, os.SEEK_CUR), LOG_BYTES)

    def tail(self) -> str:
        """The last of it as plain text: control codes and CI commands are taken out."""
        end = self.printed
        start = max(0, end - LOG_TAIL_BYTES)
        return plain_text(os.pread(self.fd, end - start, start).decode(errors="replace"))


class Child:
    """One process with a socket to it; `line` is our end of it, of which the judge gets a copy.

    `pid` is what ends with it. At level 2 that is the first process of its namespaces, or the
    launcher, and the process itself lies below: see `process_tree.descendants`.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        jail: Jail | None,
        forkserver: ForkServer | None = None,
    ) -> None:
        self.log, self._held = Log(), contextlib.ExitStack()
        if jail:
            self._held.enter_context(locked(jail.cache, os.O_DIRECTORY, fcntl.LOCK_SH))
        self._paused_ns: dict[int, int] | None = None  # pid of theirs → CPU time, all stopped
        self.signalled = threading.RLock()  # who stops it and lets it go on, or needs it running
        self.on_turn = False  # and is stopped by nobody but who ends it
        self.held_s = 0.0  # so long it was stopped for looks at it, and not behind a turn
        self._newest = b""  # process of its namespaces then
        self._one = threading.Lock()  # who signals it, looks at it, or waits for it
        self._code: int | None = None
        self._waited_for = False  # its number can be another's from then on
        self.line, theirs = socket.socketpair()
        self.first: socket.socket | None = None  # to the first process of its namespaces
        self._begun: subprocess.Popen[bytes] | None = None  # not by the fork server
        rules = sandbox_rules(jail) if jail else enter.Rules(level=0)
        self.group: cgroup.Group | None = None
        if jail and jail.memory_bytes and rules.level:
            self.group = cgroup.make(jail.memory_bytes, rules.processes, cgroup.parent())
            rules = replace(rules, cgroup=self.group.folder if self.group else None)
        self.walled = rules.level == 2
        #: So many of `pids()` are ours: the first process of its namespaces, and what launched it.
        self.ours = (1 if forkserver else 2) if self.walled else 0
        if jail and forkserver:
            self.first, first = socket.socketpair() if self.walled else (None, None)
            with theirs, first or contextlib.nullcontext():
                env = untrusted_env(jail)
                self.pid = forkserver.fork(arguments, env, rules, theirs, self.log.fd, first)
            return
        command = [sys.executable, "-m", module, "--fd", str(theirs.fileno()), *arguments]
        if jail:
            env, cwd = untrusted_env(jail), jail.house
        else:  # the judge's: ours, with the house importable
            env = bytecode.with_cache({**os.environ, "PYTHONPATH": _python_path(HOME)})
            cwd = HOME
        with theirs:
            self._begun = started(enter.command(rules, command), env, cwd, self.log.fd, theirs)
        self.pid = self._begun.pid
        if rules.level:
            self._mark()

    def _mark(self) -> None:
        """As its launcher does in a moment: who looks by then finds no other.

        Tried again: without root an exec that goes on is nobody's to write to, for some ms.
        """
        for _ in range(MARKS):
            enter.end_first(self.pid)
            if not usage.outlives_us(self.pid):
                break
            time.sleep(0.001)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._ended() is None

    def pids(self) -> list[int]:
        """It and everything below it, as this process numbers them."""
        return [] if self._waited_for else [self.pid, *process_tree.descendants(self.pid)]

    def pause(self) -> None:
        """Stop every thread of it: nothing computes while others are on the clock."""
        with self.signalled:
            self.on_turn = False
            self._stop()
            if self.group:  # behind the signal: the first process is in it too
                self.group.freeze(True)
            begun, before = time.monotonic(), usage.cpu_ns(self._theirs())
            while True:
                time.sleep(0.001)
                took_s = time.monotonic() - begun
                late = took_s > STOPPING_S
                busy = usage.RUNNING if took_s > WAITING_S else usage.RUNNING | usage.WAITING
                if took_s > WAITING_S and not self.group:  # who runs was woken by another's SIGCONT
                    self._stop()
                if usage.cpu_ns(before) == before or late:  # cheaper than what each thread does
                    states = {pid: set(usage.states(pid)) for pid in self._theirs()}
                    if late or not any(each & busy for each in states.values()):
                        break
                    if not self.first:
                        self._signal(signal.SIGSTOP)  # what has been forked meanwhile
                before = usage.cpu_ns(self._theirs())
            # An end is over when it is waited for, which is no running.
            stopped = (pid for pid, each in states.items() if each - usage.ENDED)
            self._paused_ns = usage.cpu_ns(stopped) if self.alive else None
            self._newest = self._ask_newest()

    @contextlib.contextmanager
    def still(self) -> Iterator[bool]:
        """Meanwhile none of it begins another: who runs is stopped, and goes on; whether so."""
        with contextlib.ExitStack() as stack:
            if got := self.signalled.acquire(timeout=WAITING_S):  # locks of a GPU take long
                stack.callback(self.signalled.release)
            if stopped := got and not self.on_turn:
                if self._paused_ns is None:
                    stack.callback(self._held_since, time.monotonic())
                    stack.callback(self.resume)
                    self._stop()
            else:
                stack.close()  # whoever locks it behind its turn waits for nobody's count
            yield stopped

    def _held_since(self, then_s: float) -> None:
        self.held_s += time.monotonic() - then_s

    def ran_paused(self) -> str:
        """What it did although it is paused, in words; empty if it did not run, or is not paused.

        A signal to go on can come from where no wall stands: a timer, the death of a
        parent, a child.
        """
        if self._paused_ns is None:
            return ""
        if not self.alive:  # nobody ends while he is stopped, but by somebody's SIGKILL
            return "it ended although it was stopped"
        before = self._paused_ns
        forked = bool(self._newest) and self._ask_newest() not in {b"", self._newest}
        if not forked and usage.cpu_ns(before) == before:
            return ""  # as nearly always
        theirs = (pid for pid in self._theirs() if set(usage.states(pid)) - usage.ENDED)
        now = usage.cpu_ns(theirs)
        spent_ms = sum(max(0, now[pid] - before[pid]) for pid in now.keys() & before.keys()) / 1e6
        if spent_ms > STOPPING_MS:
            return f"its processes ran for {spent_ms:.0f} ms although they were stopped"
        if forked or now.keys() != before.keys():
            return "a process of it began or ended although they were stopped"
        return ""

    def _theirs(self) -> list[int]:
        """Its pids but ours: the first process spends time whenever it is asked."""
        return self.pids()[self.ours :]

    def _stop(self) -> None:
        frozen = self.group and self._paused_ns is not None  # the first process too: it is silent
        if not frozen and not self._asked(namespaces.STOP):
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        with self.signalled:
            self._paused_ns = None
            if self.group:
                self.group.freeze(False)
            if not self._asked(namespaces.GO):
                self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill all of it without waiting."""
        self._signal(signal.SIGKILL)
        if self.group:
            self.group.kill()

    def hang_up(self) -> None:
        """It has ended: kill its group, and tell who listens to it.

        A fork that holds its end of the line too would keep the judge waiting to its deadline.
        """
        self.kill()
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kill all of it and wait for it; whoever has its number from then on is not touched."""
        launched = self.walled and self._begun and not self._waited_for
        first = process_tree.children(self.pid) if launched else []  # ours when its launcher ends
        self.kill()
        self._ended(ENDING_S)
        self._signal(signal.SIGKILL)  # what it started while it ended
        with self._one:
            if self._code is not None and not self._waited_for:
                self._waited_for = True
                if self._begun:  # which would wait for that number when it is dropped
                    self._begun.wait()
                else:
                    with contextlib.suppress(ChildProcessError):  # somebody else has
                        os.waitpid(self.pid, 0)
        for pid in first:  # and all of its namespaces end with it
            process_tree.reap(pid, time.monotonic() + ENDING_S)
        self._held.close()
        for line in filter(None, (self.line, self.first)):
            with contextlib.suppress(OSError):
                line.close()
        if self.group:
            self.group.remove()

    def ending(self, wait_s: float = 2.0) -> str:
        """How it ended, in words; waits a moment for it to do so."""
        if (code := self._ended(wait_s)) is None:
            return "still running"
        if self.walled and code > namespaces.BY_SIGNAL:
            code = namespaces.BY_SIGNAL - code
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"killed by {names.get(-code, f'signal {-code}')}"  # few real-time ones have one
        return f"exited with code {code}"

    def log_tail(self) -> str:
        """The last of what it printed, as plain text."""
        return self.log.tail()

    def _asked(self, word: bytes) -> bool:
        """Have the first process stop or continue the others; of a silent one all are ended."""
        if self.first and not namespaces.ask(self.first, word):
            self.first.close()
            self.first = None
            self.kill()  # nobody else stops who forks all the time
        return self.first is not None

    def _ask_newest(self) -> bytes:
        """Which process began last, ended or not; b"" at level 1 and in a frozen group."""
        return namespaces.newest(self.first) if self.first and not self.group else b""

    def _ended(self, wait_s: float = 0.0) -> int | None:
        """Its exit code, negative for a signal, or None if it still runs after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while (code := self._look()) is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return code

    def _look(self) -> int | None:
        """The same at once. It keeps its number, as long as nobody but `end` waits for it."""
        with self._one:
            if self._code is None:
                try:
                    told = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                except ChildProcessError:  # somebody else has waited for it
                    self._waited_for, self._code = True, -signal.SIGKILL
                else:
                    if told:
                        by_signal = told.si_code != os.CLD_EXITED
                        self._code = -told.si_status if by_signal else told.si_status
            return self._code

    def _signal(self, number: signal.Signals) -> None:
        with self._one:
            if self._waited_for:
                return
            process_tree.signal_tree(self.pid, number)  # what left the session is still below it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                try:
                    os.killpg(self.pid, number)
                except ProcessLookupError:  # it has only begun, and leads no group yet
                    os.kill(self.pid, number)


def sandbox_rules(jail: Jail) -> enter.Rules:
    """The jail as the sandbox's rules."""
    imports = (*readable.opened(jail.shut), *readable.compilers(jail.shut))
    return enter.Rules(
        level=jail.level,
        rw=(jail.cache,),
        fresh=(jail.scratch,),
        processes=jail.processes,
        ro=(jail.source, HOME / "harness", jail.house, *imports),
        chdir=jail.scratch,
        uid=jail.uid,
        devices=jail.devices,
        room_bytes=min(enter.ROOM_BYTES, jail.memory_bytes or enter.ROOM_BYTES),
    )


def untrusted_env(jail: Jail) -> dict[str, str]:
    """An allow-list, private folders, and nothing that tells of the harness."""
    cache = str(jail.cache)
    private = {
        "HOME": cache,
        "TMPDIR": str(jail.scratch),
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "TRITON_HOME": cache,
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TRITON_CACHE_AUTOTUNING": "1",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch_extensions",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # its pool needs semaphores outside the jail
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "ATTNBOARD_CACHE": cache,
    }
    return {**bare_env(jail.house), **private, **jail.env}


def bare_env(house: Path) -> dict[str, str]:
    """What every untrusted process and the fork server are told: paths of programs, language."""
    env = {key: os.environ[key] for key in KEPT_ENV if key in os.environ}
    return env | {"PYTHONPATH": _python_path(house), "PYTHONDONTWRITEBYTECODE": "1"}


def _python_path(house: Path) -> str:
    """Ours first. A child gets a folder with nothing but the package: to import is to list."""
    return os.pathsep.join([str(house), *readable.import_path()])
