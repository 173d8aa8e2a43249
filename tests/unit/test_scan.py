"""The scanner points at lines; it never judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scan import scan_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import os\nos._exit(0)", "_exit"),
        ("import torch\ntorch.cuda.Event.elapsed_time = None", "elapsed_time"),
        ("import socket", "socket"),
        ("from pickle import dumps", "pickle"),
        ("open('/proc/self/maps')", "/proc/"),
        ("eval('1')", "eval"),
        ("tеnsor = 1", "ASCII"),  # the second letter is Cyrillic
        (f"blob = '{'A' * 5000}'", "binary"),
    ],
)
def test_points_at_the_line(tmp_path: Path, source: str, word: str) -> None:
    (tmp_path / "submission.py").write_text(source, encoding="utf-8")
    hints = scan_folder(tmp_path)
    assert any(word in str(hint) for hint in hints)
    assert all(hint.line >= 1 for hint in hints)


def test_a_plain_kernel_has_no_hints() -> None:
    assert scan_folder(ROOT / "tests" / "honest" / "eager_chunked") == []


def test_a_file_that_does_not_parse_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    assert scan_folder(tmp_path) == []


def test_it_misses_cheaters_and_that_is_why_it_is_no_verdict() -> None:
    quiet = [p.name for p in (ROOT / "tests" / "cheaters").iterdir() if not scan_folder(p)]
    assert "b7_zeros" in quiet
    assert "b3_correct_first_ten" in quiet
