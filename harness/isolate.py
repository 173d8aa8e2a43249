"""Start, watch, pause, limit and end one process of the run. Every ending becomes words.

A child gets its own session (so that one signal reaches all of its group), an allow-listed environment,
a log file for stdout and stderr, and one socket. Its exit code is a fact about it, never evidence for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import hygiene, readable, sandbox
from harness.defences import NOTHING_OFF, Defence, Off
from harness.nursery import FORKED_LEVELS, Adopted, Nursery
from harness.words import plain_text

ROOT = Path(__file__).resolve().parent.parent
LOG_TAIL_BYTES = 4096
KEPT_ENV = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True)
class Jail:
    """What a child may see: its private folders, its source, the extra environment, how strictly."""

    cache: Path
    scratch: Path
    env: Mapping[str, str]
    source: Path
    house: Path  # holds a link to the package and nothing else; not the child's to write
    level: int = 0  # of harness/sandbox.py
    off: Off = NOTHING_OFF


class Child:
    """One process with a socket to it; `line` is the end the parent keeps (or hands to the judge)."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        jail: Jail | None,
        log: Path,
        arena: Path | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        self.log = log
        self.line, theirs = socket.socketpair()
        self.process: subprocess.Popen[bytes] | Adopted
        if jail and nursery and jail.level in FORKED_LEVELS:
            rules = rules_of(jail, arena) if jail.level else None
            with theirs:
                self.process = nursery.fork(arguments, untrusted_env(jail), rules, theirs, log)
            self.pid = self.process.pid
            return
        command = [sys.executable, "-m", module, "--fd", str(theirs.fileno()), *arguments]
        if jail:
            command = sandbox.command(jail.level, rules_of(jail, arena), command)
        with open(log, "ab") as output, theirs:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=jail.house if jail else ROOT,
                env=untrusted_env(jail) if jail else trusted_env(),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def pause(self) -> None:
        """Stop every thread of it: nothing computes while others are on the clock."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the whole group without waiting for it."""
        self._signal(signal.SIGKILL)

    def end(self, grace_s: float = 0.0) -> None:
        """Kill the whole group; with `grace_s` it may leave by itself first."""
        if grace_s and self.alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        with contextlib.suppress(OSError):
            self.line.close()

    def ending(self, wait_s: float = 2.0) -> str:
        """How it ended, in words; waits a moment for it to be reaped."""
        deadline = time.monotonic() + wait_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self.process.poll()
        if code is None:
            return "still running"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"killed by {names.get(-code, f'signal {-code}')}"  # few real-time ones have one
        return f"exited with code {code}"

    def log_tail(self) -> str:
        """The last of what it printed, as plain text: control codes and CI commands are taken out."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return plain_text(text)

    def _signal(self, number: signal.Signals) -> None:
        hygiene.signal_tree(self.pid, number)  # what left the session is still below it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def resident_bytes(pid: int) -> int:
    """Host memory of one process, 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def rules_of(jail: Jail, arena: Path | None) -> sandbox.Rules:
    """The jail as the sandbox's rules; `arena` holds the buffers shared with the judge."""
    imports = readable.opened(readable.shut(ROOT, jail.cache.parent))
    return sandbox.Rules(
        rw=(jail.cache, jail.scratch),
        ro=(jail.source, ROOT / "harness", jail.house, *imports),
        use=(arena,) if arena else (),
        chdir=jail.scratch,
    )


def trusted_env() -> dict[str, str]:
    """The judge's environment: ours, with the house importable."""
    return {**os.environ, "PYTHONPATH": _python_path(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def untrusted_env(jail: Jail) -> dict[str, str]:
    """An allow-list, private folders, and nothing that tells of the harness."""
    everything = Defence.CLEAN_ENVIRONMENT in jail.off
    env = dict(os.environ) if everything else {}
    cache = str(jail.cache)
    env |= bare_env(jail.house)
    env |= {
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
    return {**env, **jail.env}


def bare_env(house: Path) -> dict[str, str]:
    """What every untrusted process is told, and the nursery: paths of programs, the language."""
    env = {key: os.environ[key] for key in KEPT_ENV if key in os.environ}
    return env | {"PYTHONPATH": _python_path(house), "PYTHONDONTWRITEBYTECODE": "1"}


def _python_path(house: Path) -> str:
    """Ours first. A child gets a folder with nothing but the package: to import is to list."""
    return os.pathsep.join([str(house), *readable.import_path()])
