"""Shared by all tests: GPU tests run where there is a GPU and say why they did not elsewhere."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from harness.measure.machine import inspect_machine

# Two files of tests share the cores, and each of their processes would start a thread for every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
    items.sort(key=lambda item: item.path.name != "test_gpu_stretch.py")
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not inspect_machine().has_gpu:
        skip = pytest.mark.skip(reason="NVML finds no GPU here")
        for item in marked:
            item.add_marker(skip)


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
