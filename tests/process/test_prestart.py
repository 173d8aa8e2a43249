"""What starts before a run is known: the judge and the fork server, and the workers of kernels still being built."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import run
from harness.cli import run_options
from harness.cli.main import exit_code_of, parse_args
from harness.errors import UnavailableError
from harness.judge import __main__ as judge
from harness.process import prestart, wire
from harness.worker.__main__ import open_context, wait_for_cubins

ROOT = Path(__file__).resolve().parents[2]


class Pretended:
    """A hall without processes."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def halls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(prestart, "TrustedProcesses", Pretended)
    yield
    prestart.end_waiting()


@pytest.mark.usefixtures("halls")
@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("--submission mine", True),
        ("-s mine --gpu 1", True),
        ("run --submission=mine", True),
        ("triton_template --suite smoke", True),
        ("--submission mine --gpus all", False),
        ("--submission mine --engine=local", False),
        ("--submission mine --blocks 0", False),
        ("--help", False),
        ("list", False),
        ("", False),
    ],
)
def test_only_one_run_of_this_machine_starts_early(
    words: str, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as its words are understood: what follows imports for a third of a second."""

    def machine_of(args: object) -> NoReturn:
        assert bool(prestart._waiting) == starts
        raise UnavailableError("reached", "")

    monkeypatch.setattr(run_options, "machine_of", machine_of)
    exit_code_of(lambda: run.main(parse_args(words.split())))
    assert bool(prestart._waiting) == starts


@pytest.mark.usefixtures("halls")
def test_a_run_takes_what_was_begun_and_the_next_begins_anew() -> None:
    prestart.start_next()
    (begun,) = prestart._waiting
    with prestart.taken() as first, prestart.taken() as second:
        assert first is begun
        assert second is not begun
        assert not begun.closed
    assert (first.closed, second.closed) == (True, True)


def test_nothing_is_left_of_a_hall_that_nobody_took() -> None:
    prestart.start_next()
    (trusted,) = prestart._waiting
    assert trusted.judge.alive
    assert trusted.forkserver.process.poll() is None
    prestart.end_waiting()
    assert not trusted.judge.alive
    assert trusted.forkserver.process.poll() is not None
    assert not trusted.scratch.exists()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("process.prestart", "pydantic"), ("cli.main", "pydantic"), ("judge.__main__", "torch")],
)
def test_what_starts_first_imports_little(module: str, unwanted: str) -> None:
    code = f"import sys, harness.{module}; sys.exit({unwanted!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(("device", "opened"), [("cuda", ["0"]), ("cpu", [])])
def test_the_judge_opens_the_gpu_that_it_is_told(
    device: str, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "of the engine")
    monkeypatch.setattr(
        judge, "open_context", lambda: seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        opening = judge.Opening(theirs)
        opening.start()
        wire.send(ours, {"device": device, "env": {"CUDA_VISIBLE_DEVICES": "0"}})
        opening.join()
    assert seen == opened
    assert opening.start_message is not None


def test_the_judge_of_an_engine_that_has_gone_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        opening = judge.Opening(theirs)
        opening.start()
        opening.join()
    assert opening.start_message is None


def test_a_machine_without_a_driver_has_no_context() -> None:
    assert not judge.open_context("libno-such-driver.so.1")


def test_a_worker_waits_for_its_cubins_until_the_judge_speaks() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = threading.Thread(target=wait_for_cubins, args=(theirs, "cpu", 0.0), daemon=True)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        wire.send(ours, {"op": "map"})
        waiting.join(30)
        assert not waiting.is_alive()
        assert wire.receive(theirs, 1) == {"op": "map"}, "it was looked at, not taken"


def test_contexts_are_opened_in_the_order_in_which_the_judge_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("torch.zeros", lambda *_, **__: None)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    monkeypatch.setattr("harness.worker.__main__.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("harness.worker.__main__.time.sleep", slept.append)
    for turn in (99.0, 100.0, 100.5):  # the submission took long to load; the first; the third
        open_context(turn)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    open_context(101.0)  # the submission has opened it itself
    assert slept == [0.0, 0.0, 0.5]
