"""Names → a request: whose name nobody else may bear, and who is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import run
from harness.board.store import Store
from harness.catalog.request import Request, resolve
from harness.catalog.suites import load_suite
from harness.errors import (
    EXIT_OK,
    EXIT_STORAGE,
    EXIT_SUBMISSION_FAILED,
    EXIT_USAGE,
    SubmissionError,
)
from harness.measure.machine import Machine
from harness.schema import Status

ROOT = Path(__file__).resolve().parents[2]
GOOD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for kind, name in (("submissions", "mine"), ("submissions", "other"), ("baselines", "sdpa")):
        folder = tmp_path / kind / name
        folder.mkdir(parents=True)
        (folder / "submission.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: {name}\n")
    return tmp_path


def asked(root: Path, *names: str, baselines: tuple[str, ...] = ()) -> Request:
    return resolve(names, baselines, load_suite("smoke", ROOT / "configs"), Machine(), "sdpa", root)


@pytest.mark.parametrize("name", ["sdpa", "null"])
def test_nobody_bears_a_baselines_name_also_where_none_runs(root: Path, name: str) -> None:
    (root / f"{name}.py").write_text(GOOD)
    for baselines in ((), ("sdpa",)):
        with pytest.raises(SubmissionError, match=f"called '{name}', which is taken"):
            asked(root, str(root / f"{name}.py"), baselines=baselines)


def test_who_bears_a_baselines_name_among_others_is_left_out_alone(root: Path) -> None:
    for name in ("sdpa", "null", "all"):
        folder = root / "submissions" / name
        folder.mkdir()
        (folder / "submission.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: '{name}'\n")
    for baselines in ((), ("sdpa",)):
        request = asked(root, "all", baselines=baselines)
        entrants = [each.name for each in request.entrants]
        assert entrants == ["mine", "other", *baselines]
        told = [each.message for each in request.refused]
        assert len(told) == 3
        assert all("which is taken" in message for message in told)


def test_a_folder_called_like_a_file_does_not_take_the_name_of_another(root: Path) -> None:
    for name in ("mine.py", "zzz.cu"):
        folder = root / "submissions" / name
        folder.mkdir()
        (folder / "submission.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: {name}\n")
    request = asked(root, "all")
    assert [entrant.name for entrant in request.entrants] == ["mine", "other"]
    assert "mine.py: a folder called like a file" in request.refused[0].message
    assert "next: mv " in str(request.refused[0])


@pytest.mark.parametrize("place", ["elsewhere/mine", "submissions/group/mine"])
def test_a_folder_from_elsewhere_does_not_take_the_row_of_another(root: Path, place: str) -> None:
    away, named = root / "elsewhere" / "mine", root / place
    for path in (away, named.parent):
        path.mkdir(parents=True, exist_ok=True)
    (away / "submission.py").write_text(GOOD)
    if not named.exists():
        named.symlink_to(away)
    with pytest.raises(SubmissionError, match="called 'mine', which is taken"):
        asked(root, str(named))
    away.rename(root / "elsewhere" / "ours")
    assert [one.name for one in asked(root, str(root / "elsewhere" / "ours")).entrants] == ["ours"]


def test_a_name_that_no_row_can_carry_is_refused_with_its_folders(root: Path) -> None:
    folder = root / "submissions" / ("g" * 60) / ("h" * 60)
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(GOOD)
    with pytest.raises(SubmissionError, match="is no name for a row; at most 80 letters"):
        asked(root, "g" * 60)


def test_one_bad_folder_is_left_out_and_told(root: Path) -> None:
    (root / "submissions" / "other" / "manifest.yaml").write_text("name: &a [*a]\n")
    request = asked(root, "all")
    assert [entrant.name for entrant in request.entrants] == ["mine"]
    assert "other/manifest.yaml:1" in request.refused[0].message


@pytest.mark.parametrize(
    ("code", "refused", "expected"),
    [
        (EXIT_OK, 0, EXIT_OK),
        (EXIT_OK, 1, EXIT_USAGE),
        (EXIT_SUBMISSION_FAILED, 1, EXIT_USAGE),
        (EXIT_STORAGE, 1, EXIT_STORAGE),
    ],
)
def test_who_was_left_out_shows_in_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, code: int, refused: int, expected: int
) -> None:
    """The story of run.py, with nobody measured."""
    notes: list[str] = []
    errors = tuple(SubmissionError(f"bad {n}", "mend it") for n in range(refused))
    request = MagicMock(refused=errors)
    store = Store.__new__(Store)
    store._refused = MagicMock() if code == EXIT_STORAGE else None
    store._statuses = {Status.CRASHED} if code == EXIT_SUBMISSION_FAILED else set()
    store._boards, store._lines = set(), None
    view = MagicMock()
    view.__enter__.return_value.note = notes.append
    stand_ins: dict[str, Any] = {
        "process.prestart.start_next": lambda: None,
        "cli.run_options.machine_of": lambda *_: Machine(),
        "cli.run_options.slow_here": lambda *_: [],
        "cli.run_options.choose_suite": lambda *_: None,
        "cli.run_options.resolve_request": lambda *_: request,
        "cli.dispatch.open_view": lambda *_, **__: view,
        "board.store.Store": lambda *_, **__: store,
        "cli.dispatch.dispatch": lambda *_: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"harness.{name}", stand_in)
    args = run.parse_args(["-s", "all"])
    assert run.main(args) == expected
    assert notes == [f"left out: {error}" for error in errors]
