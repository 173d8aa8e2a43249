"""The nursery process: `python -m harness.worker.nursery FD` imports torch, then forks a worker a message.

    engine ── fork this ──> nursery ── fork ──> between ── fork ──> worker
    engine <───────────────── pid ─────────────────────────────────┘  (its parent ends: the engine adopts it)

The worker clears what it inherited (descriptors, environment), puts the walls up and runs
harness.worker as if it had been started by its own command line. Nothing of a submission ever runs in
the nursery itself, so every fork starts from the same clean memory.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time
import traceback
from pathlib import Path

from harness import hygiene, sandbox, wire
from harness.errors import UnavailableError


def serve(line: socket.socket) -> None:
    """Fork a worker for each message until the engine is gone."""
    while True:
        try:
            message, fds = wire.receive_with_fds(line, max_fds=2)
        except wire.PeerClosed:
            return
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(told)
            line.close()
            beget(message, fds, tell)
        os.waitpid(between, 0)
        os.close(tell)
        for fd in fds:
            os.close(fd)
        with open(told, "rb") as answer:
            wire.send(line, {"pid": int(answer.read())})


def beget(message: wire.Message, fds: list[int], tell: int) -> None:
    """Fork the worker and end, so that it has no parent here; never returns."""
    try:
        between = os.getpid()
        if os.fork() == 0:
            become_worker(message, fds, tell, between)
    finally:
        os._exit(0)


def become_worker(message: wire.Message, fds: list[int], tell: int, between: int) -> None:
    """Leave everything of the nursery behind and run one worker; never returns."""
    from harness.worker import __main__ as worker  # here since `main`

    code = 1
    try:
        os.setsid()
        while os.getppid() == between:  # the engine must be the parent before it hears of us
            time.sleep(0.0002)
        os.write(tell, str(os.getpid()).encode())
        os.close(tell)
        socket_fd, log_fd = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        hygiene.die_with_parent()
        os.environ.clear()
        os.environ.update(message["env"])
        raise_walls(message["rules"])
        code = worker.main(["--fd", str(socket_fd), *message["arguments"]])
    except UnavailableError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # leave without running whatever the submission registered at exit


def raise_walls(told: wire.Message | None) -> None:
    """Enter the sandbox for good; None is level 0."""
    if told is None:
        return
    rules = sandbox.Rules(
        rw=tuple(map(Path, told["rw"])),
        ro=tuple(map(Path, told["ro"])),
        use=tuple(map(Path, told["use"])),
        file_bytes=int(told["file_bytes"]),
        processes=int(told["processes"]),
    )
    sandbox.enter(rules)
    if told["chdir"]:
        os.chdir(told["chdir"])


def main() -> int:
    """Import, freeze what was imported, serve."""
    hygiene.die_with_parent()
    line = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a tenth of torch's import is looking for garbage
    importlib.import_module("harness.worker.__main__")
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page of what it looks at
    serve(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
