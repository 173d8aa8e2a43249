"""A check in a fork: its error comes back, and what it takes beyond its limits ends it alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.catalog import apart
from harness.catalog.apart import checked_apart
from harness.catalog.signature import check_source
from harness.errors import SubmissionError
from harness.problems import get_problem
from harness.process import process_tree

PROBLEM = get_problem("attention_forward")
GOOD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


def raise_one() -> None:
    raise SubmissionError("mine.py:1: " + "é" * 100_000, "mend it")


def hoard() -> None:
    bytearray(2 * apart.MOST_MEMORY_BYTES)


def spin() -> None:
    while True:
        pass


def test_the_error_comes_back_whole() -> None:
    with pytest.raises(SubmissionError) as caught:
        checked_apart(raise_one, "mine.py")
    assert caught.value.message == "mine.py:1: " + "é" * 100_000
    assert caught.value.hint == "mend it"


def test_who_has_nothing_to_say_passes() -> None:
    assert checked_apart(lambda: True, "mine.py")
    assert not checked_apart(lambda: False, "mine.py")


@pytest.mark.parametrize(
    "check",
    [hoard, spin, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0, lambda: os._exit(3)],
    ids=["memory", "time", "crash", "fault", "exit"],
)
def test_what_ends_the_fork_ends_nobody_else(
    check: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "MOST_CPU_S", 1)
    before = set(Path("/proc/self/fd").iterdir())
    others = process_tree.children(os.getpid())
    with pytest.raises(
        SubmissionError, match=r"mine\.py: cannot be parsed within 1 s and 1024 MiB"
    ):
        checked_apart(check, "mine.py")
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert process_tree.children(os.getpid()) == others


def test_a_fork_that_sleeps_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST_WAIT_S", 0.2)
    with pytest.raises(SubmissionError, match="cannot be parsed"):
        checked_apart(lambda: time.sleep(60), "mine.py")


def test_a_file_that_costs_the_parser_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST_CPU_S", 1)
    body = f"x = f'{'{a}' * 160_000}'\n{GOOD}import a{'.a' * 5000}\n".encode()
    started = time.process_time()
    with pytest.raises(SubmissionError, match=r"submission\.py: cannot be parsed"):
        check_source(Path("submission.py"), body, PROBLEM)
    assert time.process_time() - started < 1, "none of it is the caller's"


@pytest.mark.parametrize(
    "head", ["", "\ufeff", "# -*- coding: UTF-8 -*-\n", "#!/x\n# coding=ascii\n"]
)
def test_a_file_in_utf_8_is_read(head: str) -> None:
    check_source(Path("submission.py"), f"{head}{GOOD}# é\n".encode(), PROBLEM)
