"""The exit code of a run: a script must never take `nobody could run` for `all is well`."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.board.store import Store
from harness.schema import Kind, Status
from tests.board.factory import result


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ([], 0),  # --resume, and nothing was left
        (["PASSED"], 0),
        (["PASSED", "UNSUPPORTED"], 0),  # the shapes that it claims
        (["UNSUPPORTED", "UNSUPPORTED"], 3),
        (["UNAVAILABLE"], 3),
        (["UNSTABLE", "CONTENDED"], 3),
        (["PASSED", "CRASHED"], 1),
        (["UNSUPPORTED", "INCORRECT", "HARNESS_ERROR"], 1),
        (["PASSED", "HARNESS_ERROR"], 2),
    ],
)
def test_exit_code_of_endings(endings: list[str], code: int, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(result("sdpa", kind=Kind.BASELINE))  # that a baseline passed says nothing
    store.save(result("other", kind=Kind.BASELINE, status=Status.CRASHED))
    for ending in endings:
        store.save(result(status=Status(ending)))
    assert store.exit_code == code
