"""A folder that strangers wrote into is removed whatever it holds, and nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

from harness.process.sandbox.removal import remove_tree


def dig(folder: Path, depth: int) -> None:
    """`depth` folders in one another, further down than a path can name."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(depth):
            Path("deep").mkdir()
            Path("deep", "file").touch()
            os.chdir("deep")
    finally:
        os.fchdir(here)
        os.close(here)


def test_deeper_than_a_path_can_name(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    dig(top, 1100)  # beyond 4096 bytes, and 1000 frames
    assert remove_tree(top)
    assert list(tmp_path.iterdir()) == []


def test_modes_links_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    (top / "a" / "out").symlink_to(tmp_path / "kept")
    (top / "out").symlink_to("/")
    os.mkfifo(top / "pipe")
    (top / "a" / "b").chmod(0)
    (top / "a").chmod(0)
    assert remove_tree(top)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_what_is_not_there_is_gone(tmp_path: Path) -> None:
    assert remove_tree(tmp_path / "nothing")


def test_a_link_goes_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept" / "file").touch()
    assert remove_tree(tmp_path / "link")
    assert (tmp_path / "kept" / "file").exists()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o750
