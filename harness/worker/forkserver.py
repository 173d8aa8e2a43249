"""The fork server: `python -m harness.worker.forkserver FD` imports torch, then forks workers.

    engine ── fork this ──> fork server ── fork ──> between ── fork ──> worker
    engine <───────────────── pid ────────────────┘  (it ends: the engine adopts the worker)

The worker clears what it inherited (descriptors, environment), puts the walls up and runs
harness.worker as if it had been started by its own command line. Nothing of a submission ever runs
in the fork server itself, so every fork starts from the same clean memory. At level 2 what the
engine adopts is the first process of the worker's namespaces, and the worker is a fork of that one.
"""

import gc
import importlib
import os
import socket
import sys
import traceback

from harness.errors import UnavailableError
from harness.process import process_tree, wire
from harness.process.sandbox import enter, readable


def serve(line: socket.socket) -> None:
    """Fork a worker for each message until the engine is gone.

    The fork reads it: what stood in one would be found in the memory of the next worker.
    """
    while line.recv(1, socket.MSG_PEEK):
        (told, tell), (adopted, until) = os.pipe(), os.pipe()
        if (between := os.fork()) == 0:
            message, fds = wire.receive_with_fds(line, max_fds=3)
            line.close()
            fork_detached(message, fds, (told, tell, adopted, until))
        os.waitpid(between, 0)
        for fd in (tell, adopted, until):
            os.close(fd)
        with open(told, "rb") as answer:
            wire.send(line, {"pid": int(answer.read())})


def fork_detached(message: wire.Message, fds: list[int], pipes: tuple[int, int, int, int]) -> None:
    """Fork the worker, tell its pid and end, so that it has no parent here; never returns.

    fds: the line to the judge, the log, at level 2 the line to the first process. pipes: on which
    the pid is told, and one that closes when the worker has been adopted.
    """
    told, tell, adopted, until = pipes
    try:
        rules, why = enter.from_plain(message["rules"]), None
        try:
            enter.leave(rules)
        except UnavailableError as error:
            why = error
        if (worker := os.fork()) == 0:
            for fd in (told, tell, until):
                os.close(fd)
            os.read(adopted, 1)  # only then may it ask to die with its parent
            os.close(adopted)
            exec_worker(message, rules, fds, why)
        os.write(tell, str(worker).encode())
    finally:
        os._exit(0)


def exec_worker(
    message: wire.Message, rules: enter.Rules, fds: list[int], why: UnavailableError | None
) -> None:
    """Leave everything of the fork server behind and run one worker; never returns.

    why: what keeps it from starting at all.
    """
    from harness.worker import __main__ as worker  # here since `main`

    code = 1
    try:
        os.setsid()
        socket_fd, log_fd, *first = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the fork server's is one for all: flags on it went to others
        os.close(nothing)
        process_tree.die_with_parent()
        os.environ.clear()
        os.environ.update(message["env"])
        if why:
            raise why
        if rules.level:
            enter.enter(rules, *first)
        for fd in first:
            os.close(fd)
        if rules.chdir:
            os.chdir(rules.chdir)
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


def main() -> int:
    """Import, freeze what was imported, serve."""
    process_tree.die_with_parent()
    line = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a tenth of torch's import is looking for garbage
    importlib.import_module("harness.worker.__main__")
    sys.dont_write_bytecode, sys.pycache_prefix = True, None  # from now on, and in every fork
    readable.readable_paths()  # for every fork
    gc.freeze()  # a collection in a fork would copy every page of what it looks at
    gc.enable()
    serve(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
