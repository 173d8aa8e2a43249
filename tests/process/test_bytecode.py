"""Bytecode of trusted processes: theirs alone, and only where the installation has none."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process import bytecode


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source of a package `heavy` that nobody has compiled."""
    source = tmp_path / "site" / "heavy" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.syspath_prepend(str(source.parent.parent))
    return source


def imports(env: dict[str, str], heavy: Path) -> None:
    env = {**env, "PYTHONPATH": str(heavy.parent.parent)}
    subprocess.run([sys.executable, "-c", "import heavy"], env=env, check=True)


def test_what_is_compiled_once_is_kept_apart(heavy: Path, tmp_path: Path) -> None:
    before = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    imports(bytecode.with_cache(before, "heavy", tmp_path / "kept"), heavy)
    assert list((tmp_path / "kept").rglob("heavy/__init__.*.pyc"))
    assert list(heavy.parent.iterdir()) == [heavy]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_what_the_installation_has_is_used_and_nothing_written(heavy: Path, tmp_path: Path) -> None:
    py_compile.compile(str(heavy), doraise=True)
    for package in ("heavy", "nobody_has_this"):
        env = bytecode.with_cache({}, package, tmp_path / "kept")
        assert env == {"PYTHONDONTWRITEBYTECODE": "1"}
    assert not (tmp_path / "kept").exists()


def test_what_others_could_have_written_is_not_run(heavy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    folder.chmod(0o770)
    (tmp_path / "link").symlink_to(heavy.parent)
    for place in (folder, tmp_path / "link", heavy):
        assert bytecode.with_cache({}, "heavy", place) == {"PYTHONDONTWRITEBYTECODE": "1"}
    folder.chmod(0o700)
    assert bytecode.with_cache({}, "heavy", folder)["PYTHONPYCACHEPREFIX"] == str(folder)
