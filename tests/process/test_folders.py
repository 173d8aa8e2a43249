"""Folders that a stranger fills, counted and taken away; control groups, which are folders too."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.sandbox import cgroup, folders
from harness.process.sandbox.cgroup import Group, make, parent
from harness.process.sandbox.folders import remove_tree
from harness.process.scratch import replacing

MIB, GIB = 1 << 20, 1 << 30
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


def test_the_tightest_bound_above_us_says_how_many_may_begin(
    tree: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's bound holds for all in it together, which no rlimit tells."""
    mount, own = tree
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    monkeypatch.setattr(cgroup, "KERNEL", kernel)
    for name, most in (("pid_max", 32768), ("threads-max", 9000)):
        (kernel / name).write_text(f"{most}\n")
    own.write_text("8:pids:/pod/x\n4:memory:/elsewhere\n0::/a/b/c\n")

    def bound(place: str, most: object, begun: int) -> None:
        (mount / place).mkdir(parents=True, exist_ok=True)
        (mount / place / "pids.max").write_text(f"{most}\n")
        (mount / place / "pids.current").write_text(f"{begun}\n")

    bound("a/b/c", "max", 50)
    bound("elsewhere", 1, 1)
    assert cgroup.room(mount, own) == 9000
    bound("a", 4096, 96)
    assert cgroup.room(mount, own) == 4000
    bound("unified/a/b", 3000, 0)
    assert cgroup.room(mount, own) == 3000
    bound("pids", 1000, 100)  # a container sees its own group there, and is told another path
    assert cgroup.room(mount, own) == 900
    bound("pids/pod/x", 5, 9)
    assert cgroup.room(mount, own) == 0
    assert cgroup.room(mount, tmp_path / "none") == 9000
    own.write_bytes(b"0::/\xe4\n")
    assert cgroup.room(mount, own) == 9000
    (kernel / "threads-max").unlink()  # as where another kernel plays Linux
    assert cgroup.room(mount, own) == 32768
    (kernel / "pid_max").unlink()
    assert cgroup.room(mount, own) == cgroup.MOST_PIDS


def test_its_bounds_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, new = (tmp_path / f"{cgroup.NAME}{pid}-x" for pid in (cgroup.MOST_PIDS, os.getpid()))
    hidden = tmp_path / f"{cgroup.NAME}{cgroup.MOST_PIDS}-y"  # as its maker is, in a container
    for each in (left, new, hidden):  # the second: another unit's, which nobody has entered so far
        each.mkdir()
    for each in (left, new):
        os.utime(each, (1, 1))
    real = Path.mkdir

    def mkdir(self: Path) -> None:
        real(self)
        for name in FILES:
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = make(1 << 30, 77, tmp_path)
    assert group is not None
    assert new.exists() and not left.exists(), "an empty one of a killed run is swept"
    assert hidden.exists(), "and none that has just been made"
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
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 1\n")  # the machine's memory was full
    assert not group.ran_out()
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


@pytest.mark.parametrize("made", ["touch", "mkdir"])
def test_a_wide_one_takes_no_longer_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """88,000 folders side by side held up a rival for 30 s."""
    now_s = [0.0]
    monkeypatch.setattr(
        folders.time, "monotonic", lambda: now_s.append(now_s[-1] + 0.01) or now_s[-1]
    )
    top = tmp_path / "top"
    (top / "wide").mkdir(parents=True)
    for number in range(300):
        getattr(top / "wide" / str(number), made)()
    assert not remove_tree(top, 1.0)
    assert now_s[-1] < 1.1
    assert remove_tree(top)


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


def test_a_folder_that_is_renamed_while_it_is_counted_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moves").mkdir()
    (tmp_path / "moves" / "hoard").write_bytes(bytes(MIB))
    disk, real = folders.Disk(tmp_path), os.open

    def late(path: str, how: int) -> int:
        return real(f"{path}-was" if path.endswith("moves") else path, how)

    with monkeypatch.context() as during:
        during.setattr(os, "open", late)
        disk.look(1 << 40, 100)
    assert disk.bytes < MIB
    disk.look(1 << 40, 100)
    assert disk.bytes >= MIB


def test_many_folders_below_a_long_path_take_little_of_our_memory(tmp_path: Path) -> None:
    """95,000 of them had the engine hold 1.6 GiB of paths, in nobody's count."""
    deep = tmp_path.joinpath(*["x" * 200] * 15)
    deep.mkdir(parents=True)
    for number in range(1500):
        (deep / str(number)).mkdir()
    tracemalloc.start()
    try:
        assert folders.counted(tmp_path, 1 << 40, 10_000)[1] == 1515
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_names_leave_in_the_folder_itself_is_counted(tmp_path: Path) -> None:
    """On ext4 a folder keeps its blocks: 108 MiB of names stayed in a cache of 82, told as none."""
    for n in range(600):
        (tmp_path / f"{n:0200}").touch()
    for path in list(tmp_path.iterdir()):
        path.unlink()
    assert folders.counted(tmp_path, 1 << 40, 1000)[:2] == (tmp_path.stat().st_blocks * 512, 0)


def test_a_folder_is_counted_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * MIB)
    (tmp_path / "outside").symlink_to("/usr")
    size, files, _ = folders.counted(tmp_path, 1 << 40, 1000)
    assert MIB <= size < 2 * MIB
    assert files == 4


def test_counting_stops_where_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").touch()
    assert 3 < folders.counted(tmp_path, 1 << 40, 3)[1] <= 21
    monkeypatch.setattr(folders, "LISTED_S", 0.0)
    assert folders.counted(tmp_path, 1 << 40, 100)[0] == folders.UNCOUNTED


def test_what_no_path_reaches_counts_as_too_much(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(25):
        fd = os.open(folder, os.O_DIRECTORY)
        os.mkdir("d" * 200, dir_fd=fd)
        folder = Path(f"/proc/self/fd/{os.open('d' * 200, os.O_DIRECTORY, dir_fd=fd)}")
    assert folders.counted(tmp_path, 1 << 40, 1000)[0] == folders.UNCOUNTED
    assert remove_tree(tmp_path)


def test_a_folder_that_is_not_to_be_listed_counts_as_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    real = os.open

    def opened(path: str, how: int) -> int:
        if path.endswith("shut"):
            raise PermissionError(13, "Permission denied")
        return real(path, how)

    monkeypatch.setattr(folders.os, "open", opened)
    assert folders.counted(tmp_path, 1 << 40, 1000)[0] == folders.UNCOUNTED


@pytest.mark.parametrize("behind", [".", "a", "a/b"])
def test_a_folder_that_is_exchanged_for_a_link_leads_the_count_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """The engine is root: it counted any folder of the host for an entrant, and its row told."""
    outside, top = tmp_path / "outside", tmp_path / "top"
    for folder in (outside, top):
        (folder / "a" / "b" / "c").mkdir(parents=True)
    for number in range(100):
        for folder in (outside / "a", outside / "a" / "b", outside / "a" / "b" / "c"):
            (folder / str(number)).touch()
    seen, real = (top / behind).stat(), os.scandir

    @contextlib.contextmanager
    def scandir(folder: int) -> Iterator[object]:
        with real(folder) as entries:
            yield entries
        if os.path.samestat(seen, os.stat(folder)):
            (top / "a").rename(tmp_path / "was")
            (top / "a").symlink_to(outside / "a")

    monkeypatch.setattr(folders.os, "scandir", scandir)
    found = folders.counted(top, 1 << 40, 1000)
    assert found[1] <= 3
    assert not found[2]
    assert (top / "a").is_symlink()


def test_a_file_that_goes_while_it_is_counted_hides_nobody_behind_it(tmp_path: Path) -> None:
    class Gone:
        path, name = str(tmp_path / "gone"), "gone"

        def stat(self, **_: object) -> object:
            raise FileNotFoundError(2, "No such file or directory")

        def is_dir(self, **_: object) -> bool:
            return False

    (tmp_path / "hoard").write_bytes(b"x" * MIB)
    real = os.scandir

    @contextlib.contextmanager
    def scandir(path: str) -> Iterator[list[object]]:
        with real(path) as entries:
            yield [Gone(), *entries]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders.os, "scandir", scandir)
        assert folders.counted(tmp_path, 1 << 40, 1000)[0] >= MIB


def test_a_disk_that_was_full_for_a_moment_is_counted_when_it_fills_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = list(os.statvfs(tmp_path))
    start, block = free[3], free[1]
    counted = []
    real = folders.counted
    monkeypatch.setattr(folders, "counted", lambda *a: counted.append(1) or real(*a))
    disk = folders.Disk(tmp_path)
    for used, looks in ((0, 1), (800 * MIB, 2), (0, 2), (600 * MIB, 3)):
        free[3] = start - used // block
        monkeypatch.setattr(folders.os, "statvfs", lambda _: os.statvfs_result(free))
        disk.look(1 << 40, 1000)
        assert len(counted) == looks


def test_a_folder_full_of_hard_links_is_counted_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """233,068 of them took no inode and 16 MiB of folders: their disk had not filled up."""
    now_s, there = [1000.0], os.statvfs(tmp_path)
    monkeypatch.setattr(folders.os, "statvfs", lambda _: there)
    monkeypatch.setattr(folders.time, "monotonic", lambda: now_s[0])
    disk = folders.Disk(tmp_path)
    (tmp_path / "file").touch()
    disk.look(1 << 40, 1000)
    for number in range(20):
        (tmp_path / str(number)).hardlink_to(tmp_path / "file")
    now_s[0] += folders.LOOK_AGAIN_S
    disk.look(1 << 40, 1000)
    assert disk.files == 1
    now_s[0] += 1
    disk.look(1 << 40, 1000)
    assert disk.files == 21


def test_a_disk_is_counted_again_when_it_has_filled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = folders.Disk(tmp_path)
    disk.look(1 << 40, 1000)
    counts = []
    real = folders.counted
    monkeypatch.setattr(folders, "counted", lambda *a: counts.append(1) or real(*a))
    free = os.statvfs(tmp_path)
    for grown, looked in (
        (0, 0),
        (folders.LOOK_AGAIN_BYTES // 2, 0),
        (folders.LOOK_AGAIN_BYTES, 1),
    ):
        left = list(free)
        left[3] -= grown // free.f_frsize
        monkeypatch.setattr(folders.os, "statvfs", lambda _, left=left: os.statvfs_result(left))
        disk._free = (free.f_bfree * free.f_frsize, free.f_ffree)
        disk.look(1 << 40, 1000)
        assert len(counts) == looked


@pytest.mark.parametrize(("field", "step"), [(3, 100 * MIB), (6, 250)])
def test_at_growth_its_owner_is_stopped_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: int, step: int
) -> None:
    """2 GiB of 1 for 8 s: a file that went from folder to folder as a walk came by."""
    free, asked, grants = list(os.statvfs(tmp_path)), list[int](), True
    step //= free[1] if field == 3 else 1
    free[field] = step * 100
    monkeypatch.setattr(folders.os, "statvfs", lambda _: os.statvfs_result(free))
    disk = folders.Disk(tmp_path)

    @contextlib.contextmanager
    def still() -> Iterator[bool]:
        asked.append(number)
        yield grants

    for number in range(10):
        grants = number != 3
        disk.look(GIB, 1000, still)
        free[field] -= step * (1 if field == 3 else 4)
    assert asked == ([3, 4, 7] if field == 3 else [1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_a_file_takes_a_link_s_place_and_no_mode_by_its_name(tmp_path: Path) -> None:
    """Whoever renames in that folder had the mode of any file of ours set, through a link."""
    ours, there = tmp_path / "key", tmp_path / "told"
    ours.write_text("secret")
    ours.chmod(0o600)
    there.symlink_to(ours)
    with contextlib.suppress(KeyError), replacing(there) as file:
        raise KeyError(file)
    assert there.is_symlink()
    with replacing(there) as file:
        (fresh,) = tmp_path.glob(".told.*")
        fresh.unlink()
        fresh.symlink_to(ours)
        file.write(b"new")
    assert (ours.read_text(), ours.stat().st_mode & 0o777) == ("secret", 0o600)
    there.unlink()
    with replacing(there) as file:
        file.write(b"new")
    assert (there.read_bytes(), there.stat().st_mode & 0o777) == (b"new", 0o644)
