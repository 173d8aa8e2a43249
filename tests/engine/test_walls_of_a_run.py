"""A run says what keeps its walls low; a cache is its entrant's own and no larger than allowed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.commands import doctor
from harness.engine import assign_roles, session
from harness.process.sandbox import enter, namespaces


@pytest.mark.parametrize(
    ("level", "lacks", "told"),
    [
        (2, "", ""),
        (1, "", ""),  # asked for
        (1, "unshare: Operation not permitted", "level 1 (landlock+seccomp), not 2: unshare"),
        (0, "this kernel has no Landlock", "level 0 (none), not 2: this kernel has no Landlock"),
        (3, "unshare: Operation not permitted", ""),
    ],
)
def test_walls_lower_than_usual_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: int, lacks: str, told: str
) -> None:
    notes: list[str] = []
    observer: Any = SimpleNamespace(note=notes.append)
    request: Any = SimpleNamespace(sandbox=level, cache=tmp_path, root=tmp_path)
    monkeypatch.setattr(enter, "lacking", lambda _: lacks)
    monkeypatch.setattr(session.search_path, "refused", lambda _: {})
    session.note_walls(request, observer)
    assert len(notes) == bool(told)
    assert told in "".join(notes)


def test_doctor_says_which_level_is_usual_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enter, "no_namespaces", lambda: "mount proc on /proc: not permitted")
    lines = {line.what: line for line in doctor.walls()}
    assert lines["namespaces"].mark == "note"
    assert "mount proc" in lines["namespaces"].found
    assert "sysctl" in lines["namespaces"].next
    assert lines["usual sandbox level"].found.startswith(("1", "0"))


def test_a_cache_over_its_quota_is_not_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assign_roles.own_folder(cache, os.geteuid(), 1)
    (cache / "file").write_bytes(b"x" * (1 << 20))
    assign_roles.own_folder(cache, os.geteuid(), 1)
    assert (cache / "file").exists()
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert not (cache / "file").exists()


def nested(top: Path, depth: int, name: str = "deep") -> None:
    """`depth` folders in one another below `top`, and a file of 1 MiB in the last one."""
    top.mkdir(exist_ok=True)
    fd = os.open(top, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(file, b"x" * (1 << 20))
    os.close(file)
    os.close(fd)


@pytest.mark.parametrize("most_gib", [1, 0.0001])
def test_a_cache_that_is_too_deep_is_not_kept_and_stops_nobody(
    tmp_path: Path, most_gib: float
) -> None:
    cache = tmp_path / "cache"
    nested(cache, 1100)  # beyond a path's 4096 bytes, and Python's 1000 frames
    (cache / "file").write_bytes(b"x" * (1 << 20))
    assign_roles.own_folder(cache, os.geteuid(), most_gib)
    assert not any(cache.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_what_cannot_be_removed_is_put_aside_and_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (cache / "below").mkdir(parents=True)
    (cache / "file").write_bytes(b"x" * (1 << 20))
    real = assign_roles.remove_tree
    monkeypatch.setattr(assign_roles, "remove_tree", lambda _: False)
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert not any(cache.iterdir())
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(assign_roles, "remove_tree", real)
    (cache / "file").write_bytes(b"x" * (1 << 20))
    assign_roles.own_folder(cache, os.geteuid(), 0.0001)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_cache_of_another_user_is_made_anew(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assign_roles.own_folder(cache, 0, 1)
    (cache / "planted").touch()
    assign_roles.own_folder(cache, 0x7000_0001, 1)
    assert not (cache / "planted").exists()
    assert cache.stat().st_uid == 0x7000_0001
    (cache / "built").touch()
    assign_roles.own_folder(cache, 0x7000_0001, 1)
    assert (cache / "built").exists(), "it is kept from run to run"


def test_an_entrant_s_user_is_its_own_and_the_same_in_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for most, first in ((1 << 32, namespaces.FIRST_USER), (1 << 16, namespaces.FEW_FIRST)):
        monkeypatch.setattr(
            namespaces, "_mapped", lambda low, end, most=most: low >= 0 and end <= most
        )
        users = [namespaces.user_of(f"{key:08x}") for key in (1, 2, 0xFFFFFFFF, 1)]
        assert all(user is not None and user >= first for user in users)
        assert users[0] == users[3]
        assert len(set(users)) == 3
    monkeypatch.setattr(namespaces, "_mapped", lambda *_: False)
    assert namespaces.user_of("1") is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(namespaces, "_mapped", lambda *_: True)
    assert namespaces.user_of("1") is None
