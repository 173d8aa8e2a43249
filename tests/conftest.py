"""Shared by all tests: GPU tests run where there is a GPU and say why they did not elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import io
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import run
from harness.cli.main import parse_args
from harness.errors import UnavailableError
from harness.measure import stats
from harness.measure.machine import inspect_machine
from harness.process import child, forkserver, process_tree, wire
from harness.process.sandbox import enter
from harness.worker import forkserver as forkserver_main

# Two files of tests share the cores, and each of their processes would start a thread for every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()  # until all tests are collected: what is made till then stays to the end

os.environ.pop("ATTNBOARD_ROOT", None)  # tests are about this checkout, or say what they are about

# A shell starts what it puts in the background deaf to Ctrl-C, and so would be every process of a test that sends one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests on machines without one; who measures comes before this process has a context.

    With one it is what a run calls another program on the GPU.
    """
    first = ("test_gpu_stretch.py", "test_gpu_faults.py")
    items.sort(key=lambda item: item.path.name not in first)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not inspect_machine().has_gpu:
        skip = pytest.mark.skip(reason="NVML finds no GPU here")
        for item in marked:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """No later search for garbage goes through all modules and tests again."""
    gc.freeze()
    gc.enable()


SLOW = Path(__file__).with_name("slow.txt")


def slow_lines() -> list[str]:
    """What the names of slow tests begin with."""
    lines = (line.partition("  #")[0].strip() for line in SLOW.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


PATTERNS = [re.compile(re.escape(line).replace(r"\*", ".*")) for line in slow_lines()]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what slow.txt lists."""
    if any(pattern.match(item.nodeid) for pattern in PATTERNS):
        item.add_marker("slow")


@pytest.fixture
def shut() -> Iterator[Callable[[Path], None]]:
    """Shuts a folder, as somebody else's of mode 0700 is; for this test root does not look into it anyway."""
    libc, header, held = (
        ctypes.CDLL(None),
        (ctypes.c_uint32 * 2)(0x20080522, 0),
        (ctypes.c_uint32 * 6)(),
    )
    libc.capget(header, held)
    less = (ctypes.c_uint32 * 6)(*held)
    less[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    folders: list[Path] = []

    def shut_one(folder: Path) -> None:
        folders.append(folder)
        folder.chmod(0)
        libc.capset(header, less)

    yield shut_one
    libc.capset(header, held)
    for folder in folders:
        folder.chmod(0o700)


def starting(template: socket.socket) -> Callable[..., Any]:
    """What stands in for `forkserver.started`: judge and fork server are forks of `template`."""
    usual = forkserver.started

    def started(
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        output: int,
        line: socket.socket,
        error: int | None = None,
        closed: Sequence[int] = (),
    ) -> Any:
        arguments = words[words.index("-m") + 1 :]
        if arguments[0] == enter.__name__:  # a builder: it would start as a stranger would
            return usual(words, env, cwd, output, line)
        message: wire.Message = {"arguments": arguments, "env": dict(env), "line": line.fileno()}
        message |= {"rules": enter.to_plain(enter.Rules(level=0, chdir=cwd)), "closed": [*closed]}
        wire.send(template, message, (line.fileno(), output, output if error is None else error))
        pid = int(wire.receive(template, forkserver.START_S)["pid"])
        return SimpleNamespace(
            pid=pid, kill=lambda: os.kill(pid, signal.SIGKILL), wait=lambda: os.waitpid(pid, 0)
        )

    return started


def become(
    message: wire.Message, rules: enter.Rules, fds: Sequence[int], why: UnavailableError | None
) -> None:
    """Run the module that a message names, in this fork of the template; run.py has its own."""
    os.setsid()
    line, out, err = fds
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115
    if line != message["line"]:
        os.dup2(line, message["line"])
        os.close(line)
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(str(rules.chdir))
    sys.path[:] = [*message["env"]["PYTHONPATH"].split(os.pathsep), *sys.path[1:]]
    module, *_ = sys.argv = message["arguments"]
    process_tree.set_process_name(module.removeprefix("harness."))
    if module == "run":
        process_tree.adopt_orphans()
        mine, theirs = socket.socketpair()
        if os.fork() == 0:
            mine.close()
            forkserver_main.serve(theirs)
            os._exit(0)
        theirs.close()
        child.started = forkserver.started = starting(mine)
    for fd in message["closed"]:  # as Python begins then
        os.close(fd)
        setattr(sys, ("stdin", "stdout", "stderr")[fd], None)
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except OSError:  # as Python ends then
            code = 120
        os._exit(code)


#: Imports what judge and fork server import, then forks one of them for each message. Before that also
#: what baseline `sdpa`, gradients, each worker on a CPU and a run's intervals would import: 3 s of a core.
TEMPLATE = f"""
from __future__ import annotations
import gc, importlib, os, runpy, signal, socket, sys, traceback
from types import SimpleNamespace
from harness.process import child, forkserver, process_tree, wire
from harness.process.sandbox import enter
from harness.worker import forkserver as forkserver_main

{inspect.getsource(starting)}

{inspect.getsource(become)}

gc.disable()
os.environ["TRITON_INTERPRET"] = "1"  # which triton reads when it is imported
importlib.import_module("harness.judge.judge")
importlib.import_module("torch.nn.attention.bias")
importlib.import_module("scipy.special")
forkserver_main.exec_worker = become
sys.exit(forkserver_main.main())
"""


@pytest.fixture(scope="session")
def template() -> Iterator[socket.socket]:
    """The line to a process of `TEMPLATE`, which ends with it."""
    process_tree.adopt_orphans()
    line, theirs = socket.socketpair()
    words, fd = [sys.executable, "-c", TEMPLATE, str(theirs.fileno())], theirs.fileno()
    root = Path(__file__).resolve().parents[1]
    env, none = {**os.environ, "PYTHONUTF8": "1"}, subprocess.DEVNULL
    with theirs, line, subprocess.Popen(words, cwd=root, env=env, stdin=none, pass_fds=(fd,)):
        yield line
        line.close()


@pytest.fixture(scope="session")
def forked(template: socket.socket) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """While it is open, judge and fork server of a run in this process are forks of `template`.

    Else each imports torch for 2 s. For tests of what a run does, not of how it begins.
    """
    started = starting(template)

    @contextlib.contextmanager
    def opened() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(child, "started", started)
            patch.setattr(forkserver, "started", started)
            yield

    return opened


@pytest.fixture(scope="module")
def warm(forked: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """All runs of a module are `forked`."""
    with forked():
        yield


class Forked:
    """What is asked of a `subprocess.Popen`, of a process that was adopted."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The same, when it has."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        return code

    def send_signal(self, number: int) -> None:
        """To it alone; it is still there, for nobody but `poll` waits for it."""
        if self.poll() is None:
            os.kill(self.pid, number)


@pytest.fixture(scope="session")
def start_run(template: socket.socket) -> Callable[..., Forked]:
    """Starts `python run.py` with these words; all of its processes are forks, its output a file.

    error: a file for what it writes to stderr; closed: descriptors that are closed as it begins.
    module: in place of run.py, `path`: the folder that it is imported from.
    """
    root = Path(__file__).resolve().parents[1]

    def start(
        words: Sequence[str],
        output: Path,
        error: Path | None = None,
        closed: Sequence[int] = (),
        module: str = "run",
        path: Path = root,
    ) -> Forked:
        line, theirs = socket.socketpair()  # which nobody uses
        with line, theirs, output.open("w") as out, (error or Path(os.devnull)).open("w") as err:
            return Forked(
                starting(template)(
                    ["-m", module, *words], {**os.environ, "PYTHONPATH": str(path)}, root,
                    out.fileno(), theirs, err.fileno() if error else None, closed,
                ).pid
            )  # fmt: skip

    return start


@pytest.fixture(scope="module")
def typed(warm: None) -> Callable[[Sequence[str]], tuple[int, str, str]]:
    """What `python run.py` with these words ends with and prints, in this process and `warm`."""

    def run_here(words: Sequence[str]) -> tuple[int, str, str]:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            code = run.main(parse_args(words))
        return code, out.getvalue(), err.getvalue()

    return run_here


@pytest.fixture(scope="module")
def intervals_once() -> Iterator[None]:
    """Who makes the rows of one case again and again has the same intervals resampled once."""
    known: dict[tuple[bytes, float, bool], stats.Interval | None] = {}
    ratio = stats.ratio

    def once(
        log_ratios: Any, level: float = stats.LEVEL, tight: bool = False
    ) -> stats.Interval | None:
        key = np.asarray(log_ratios, dtype=np.float64).tobytes(), level, tight
        if key not in known:
            known[key] = ratio(log_ratios, level, tight)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "ratio", once)
        yield
