"""Shared by all tests: GPU tests run where there is a GPU and say why they did not elsewhere."""

from __future__ import annotations

import signal

import pytest

from harness.machine import inspect_machine

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
