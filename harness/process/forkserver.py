"""The engine's line to the fork server, which has imported torch once and forks every worker.

Starting an interpreter and importing torch takes two seconds of a core, for each worker again. A
fork of a process that has done so takes a hundredth of that and shares its memory. The walls of
harness/process/sandbox/enter.py go up in the fork before it reads a line of the submission, and the
fork server holds nothing that a fork should not see: no seed, no path but the package's, the
allow-listed environment.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import HarnessError, WireError
from harness.process import process_tree, wire
from harness.process.sandbox import enter

MODULE: tuple[str, ...] = ("harness.worker.forkserver",)  # to start, and its arguments
START_S = 180.0
WORKER_NAME = "attn-worker"  # of a fork, in place of the fork server's


def started(
    words: Sequence[str], env: Mapping[str, str], cwd: Path, output: int, line: socket.socket
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, with nothing to read and `line` open in it."""
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=env,
            pass_fds=(line.fileno(),),
            start_new_session=True,
        )
    except OSError as cause:  # whoever is on turn has no part in it
        raise HarnessError(f"no process can be had: {cause}", "python run.py doctor") from None


class ForkServer:
    """One process, started at once; `fork` waits until it has its imports."""

    def __init__(self, house: Path, env: Mapping[str, str], log: Path) -> None:
        process_tree.adopt_orphans()  # its forks become our children, so that we can wait for them
        self.house, self.env, self.log = house, dict(env), log
        self._one = threading.Lock()
        self._start()

    def _start(self) -> None:
        self.line, theirs = socket.socketpair()
        # -s: $HOME belongs to the untrusted side, and Python would run what lies in its user site.
        words = [sys.executable, "-s", "-m", *MODULE, str(theirs.fileno())]
        with open(self.log, "ab") as output, theirs:
            self.process = started(words, self.env, self.house, output.fileno(), theirs)

    def fork(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        rules: enter.Rules,
        line: socket.socket,
        log: int,
        first: socket.socket | None = None,
    ) -> int:
        """Start one worker behind `rules`: `line` to talk on, the descriptor `log` as its output.

        first: on which the first process of its namespaces is told what to do, at level 2. Returns
        its pid: it became our child when its parent ended.
        """
        message: wire.Message = {"arguments": list(arguments), "env": dict(env)}
        message["rules"] = enter.to_plain(rules)
        with self._one:
            fds = (line.fileno(), log, *([first.fileno()] if first else []))
            try:
                return self._asked(message, fds)
            except (ValueError, WireError):  # the first: there was no line for another one
                self.close()  # it was killed: whoever did that, another one is as good
            try:
                self._start()
                return self._asked(message, fds)
            except (OSError, WireError) as cause:
                tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-6:]
                said = "\n".join([f"the fork server of the workers failed: {cause}", *tail])
                raise HarnessError(said, "python run.py doctor") from None

    def _asked(self, message: wire.Message, fds: tuple[int, ...]) -> int:
        wire.send(self.line, message, fds)
        return int(wire.receive(self.line, START_S)["pid"])

    def close(self) -> None:
        """End it; its forks are children of ours and live on."""
        with contextlib.suppress(OSError):
            self.line.close()
        self.process.kill()
        self.process.wait()
