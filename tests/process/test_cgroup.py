"""Control groups, and folders that a stranger filled, taken away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.process.sandbox import cgroup
from harness.process.sandbox.cgroup import Group, make, parent
from harness.process.sandbox.removal import remove_tree

FILES = [
    "cgroup.procs",
    "cgroup.kill",
    "cgroup.freeze",
    "memory.max",
    "memory.oom.group",
    "pids.max",
]


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    """A hierarchy a/b/c and the file that says that we are in c."""
    mount, own = tmp_path / "mount", tmp_path / "own"
    (mount / "a" / "b" / "c").mkdir(parents=True)
    for folder in (mount, *(f for f in mount.rglob("*") if f.is_dir())):
        (folder / "cgroup.subtree_control").write_text("cpu\n")
        (folder / "cgroup.procs").touch()
    own.write_text("1:name=systemd:/\n0::/a/b/c\n")
    return mount, own


def test_the_nearest_that_hands_memory_and_pids_down(tree: tuple[Path, Path]) -> None:
    mount, _ = tree
    assert parent(*tree) is None
    (mount / "cgroup.subtree_control").write_text("memory pids\n")
    assert parent(*tree) == mount
    (mount / "a" / "b" / "cgroup.subtree_control").write_text("memory pids\n")
    assert parent(*tree) == mount / "a" / "b"
    (mount / "a" / "b" / "cgroup.subtree_control").write_text("memory\n")
    assert parent(*tree) == mount


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_not_where_it_may_not_be_written(tree: tuple[Path, Path]) -> None:
    mount, _ = tree
    (mount / "cgroup.subtree_control").write_text("memory pids\n")
    (mount / "cgroup.procs").chmod(0o400)
    assert parent(*tree) is None


def test_none_without_a_hierarchy(tmp_path: Path) -> None:
    assert parent(tmp_path / "none", tmp_path / "none") is None
    assert make(1, 1, None) is None


def test_its_bounds_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{cgroup.NAME}1-left").mkdir()
    real = Path.mkdir

    def mkdir(self: Path) -> None:
        real(self)
        for name in FILES:
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = make(1 << 30, 77, tmp_path)
    assert group is not None
    assert not (tmp_path / f"{cgroup.NAME}1-left").exists(), "an empty one of a killed run is swept"
    read = {name: (group.folder / name).read_text() for name in FILES}
    assert read["memory.max"] == str((1 << 30) + cgroup.ROOM_BYTES)
    assert (read["pids.max"], read["memory.oom.group"]) == ("77", "1")
    cgroup.join(group.folder)
    group.kill()
    assert (group.folder / "cgroup.procs").read_text() == "0"
    assert (group.folder / "cgroup.kill").read_text() == "1"
    for frozen in (True, False):
        group.freeze(frozen)
        assert (group.folder / "cgroup.freeze").read_text() == str(int(frozen))
    for name in FILES:
        (group.folder / name).unlink()
    group.remove()
    assert not group.folder.exists()
    group.remove()


def test_what_it_counts(tmp_path: Path) -> None:
    group = Group(tmp_path)
    assert (group.bytes(), group.ran_out()) == (0, False)
    (tmp_path / "memory.stat").write_text("anon 5\nfile 900\nkernel 7\nshmem 11\nsock 13\nslab 4\n")
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 0\n")
    assert (group.bytes(), group.ran_out()) == (36, False)
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert group.ran_out()


def test_one_that_refuses_is_none(tmp_path: Path) -> None:
    assert make(1, 1, tmp_path / "gone") is None


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
