"""Shared by all tests: GPU tests run where there is a GPU and say why they did not elsewhere."""

from __future__ import annotations

import pytest

from harness.machine import inspect_machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests on machines without one."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not inspect_machine().has_gpu:
        skip = pytest.mark.skip(reason="NVML finds no GPU here")
        for item in marked:
            item.add_marker(skip)
