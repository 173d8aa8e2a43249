"""Which status an exception of a submission means."""

from __future__ import annotations

import pytest

from harness.schema import Status
from harness.worker.load import classify


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (RuntimeError("CUDA error: operation not supported"), Status.CRASHED),
        (RuntimeError("no kernel image is available for execution"), Status.CRASHED),
        (ValueError("NotImplementedError: unsupported"), Status.CRASHED),
        (NotImplementedError("headdim 96"), Status.UNSUPPORTED),
        (RuntimeError("CUDA out of memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("ptxas fatal"), Status.COMPILE_ERROR),
    ],
)
def test_only_who_says_so_on_purpose_is_unsupported(cause: Exception, status: Status) -> None:
    assert classify(cause, importing=False) is status
