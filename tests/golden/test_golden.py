"""Help, record, board, page and commands are byte for byte what they were; exit codes keep their meaning."""

from __future__ import annotations

import difflib
import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import run
from harness import errors
from harness.board import record
from harness.cli.main import exit_code_of
from tests.golden import texts


def differences(name: str, made: str) -> str:
    kept = (texts.HERE / name).read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        kept.splitlines(), made.splitlines(), "kept", "made", "", "", 1, ""
    )
    return "\n".join(lines)


@pytest.mark.parametrize("make", texts.MAKERS, ids=lambda make: make.__name__)
def test_what_people_read_is_as_it_was(make: Callable[[], dict[str, str]]) -> None:
    for name, made in make().items():
        told = differences(name, made)
        assert not told, f"{told}\nif it is meant: python -m tests.golden.texts"


def test_a_line_of_another_day_is_read_and_written_the_same() -> None:
    line = (texts.HERE / "record.jsonl").read_text(encoding="utf-8").strip()
    assert record.parse(line.encode()) == texts.one_record()
    assert record.to_line(record.parse(line.encode())) == line
    assert len(json.loads(line)) > 40


def fails(error: BaseException) -> Callable[[], int]:
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list suites", 0),
        ("show fast", 0),
        ("compare slow fast --fail-on-regression 1%", 1),
        ("compare fast slow --fail-on-regression 1%", 0),
        ("rank --check", 1),
        ("verify fast --audit-only", 3),  # it has a stretch
        ("", 2),
        ("rnak", 2),
        ("rank --watch", 2),
        ("show nobody", 2),
        ("show fast --suite other", 3),
        ("compare fast fast@r9", 2),
        ("--submission no_such_entry", 2),
        ("--submission triton_template --suite no_such_suite", 2),
        ("--submission triton_template --blocks 0", 2),
        ("--submission triton_template --sku nvidia-h200", 2),
        ("build no_such_entry", 2),
        ("init triton_template", 2),
        ("selftest no_such_specimen", 2),
        ("baselines --check no_such_baseline", 3),
        ("a" * 300, 2),
        (f"--submission triton_template --suite {'a' * 300}", 2),
        (
            f"--submission triton_template --suite smoke --engine slurm --resume --sku {'a' * 300}",
            2,
        ),
    ],
)
def test_exit_code_of_words(words: str, code: int, tmp_path: Path) -> None:
    for one in texts.results():
        record.append(tmp_path, one)
    asked = words.split()
    if asked and asked[0] in ("show", "compare", "rank", "verify"):
        asked += ["--results", str(tmp_path)]
    assert exit_code_of(lambda: run.main(texts.cli_main.parse_args(asked))) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("no"), 2),
        (errors.SuiteError("no"), 2),
        (errors.NoEntryError("no"), 2),
        (errors.SubmissionError("no"), 1),
        (errors.WireError("no"), 2),
        (errors.HarnessError("no"), 2),
        (ZeroDivisionError(), 2),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300), 2),
        (errors.UnavailableError("no"), 3),
        (errors.GpuUnhealthyError("no"), 4),
        (errors.StorageError("no"), 5),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_code_of_an_end(error: BaseException, code: int) -> None:
    assert exit_code_of(fails(error)) == code


@pytest.mark.parametrize("words", ["rank", "show fast", "verify fast", "rank --board {0}/x"])
def test_a_word_longer_than_a_path_may_be_is_no_fault_of_ours(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a" * 300
    where = str(tmp_path) if "{0}" in words else long
    asked = [*words.format(long).split(), "--results", where]
    assert exit_code_of(lambda: run.main(texts.cli_main.parse_args(asked))) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: longer than a path may be, or a link to one: aaa")
    assert "Traceback" not in told
