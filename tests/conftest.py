"""Shared by all tests: GPU tests run where there is a GPU and say why they did not elsewhere."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from harness.machine import inspect_machine

# Two files of tests share the cores, and each of their processes would start a thread for every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it puts in the background deaf to Ctrl-C, and so would be every process of a test that sends one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests on machines without one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not inspect_machine().has_gpu:
        skip = pytest.mark.skip(reason="NVML finds no GPU here")
        for item in marked:
            item.add_marker(skip)


SLOW = Path(__file__).with_name("slow.txt")


def slow_patterns() -> dict[str, re.Pattern[str]]:
    """Line of slow.txt → what a test's name begins with."""
    lines = (line.partition("  #")[0].strip() for line in SLOW.read_text().splitlines())
    wanted = [line for line in lines if line and not line.startswith("#")]
    return {line: re.compile(re.escape(line).replace(r"\*", ".*")) for line in wanted}


PATTERNS, MATCHED = slow_patterns(), set[str]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what slow.txt lists."""
    for line, pattern in PATTERNS.items():
        if pattern.match(item.nodeid):
            item.add_marker("slow")
            MATCHED.add(line)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A line of slow.txt that no test has the name of is a test that was renamed: say so."""
    whole = session.config.args == session.config.getini("testpaths")
    idle = sorted(set(PATTERNS) - MATCHED)
    if whole and idle:
        raise pytest.UsageError(f"{SLOW}: no test begins with {idle[0]}")
