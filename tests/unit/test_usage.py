"""What a tree of processes takes is counted whole, and what it shares only once."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process import process_tree
from harness.process.sandbox import usage

MIB = 1 << 20


def test_cpu_time_of_a_process_and_of_nobody() -> None:
    me = os.getpid()
    before = usage.cpu_ns([me, 1 << 22])
    while usage.cpu_ns([me])[me] < before[me] + 10_000_000:
        pass
    assert before.keys() == {me}
    spent_s = sum(os.times()[:2])
    assert abs(usage.cpu_ns([me])[me] / 1e9 - spent_s) < 0.1 + spent_s / 10


def test_resident_memory_of_nobody_is_zero() -> None:
    assert usage.resident_bytes(os.getpid()) > MIB
    assert usage.resident_bytes(2**22 + 1) == 0
    assert usage.fair_bytes(2**22 + 1) == 0


@pytest.fixture
def forks() -> Iterator[list[int]]:
    """Three processes that share 64 MiB, this one among them."""
    kept = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    kept.write(b"x" * len(kept))
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            process_tree.die_with_parent()
            time.sleep(60)
            os._exit(0)
        children.append(child)
    yield [os.getpid(), *children]
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_forks_share_is_counted_once(forks: list[int]) -> None:
    bound = sum(map(usage.resident_bytes, forks))
    assert usage.host_bytes(forks, limit=1 << 40) == bound, "the bound suffices where it is low"
    exact = usage.host_bytes(forks, limit=0)
    assert exact < bound - 100 * MIB
    assert exact > 64 * MIB


def test_a_folder_is_counted_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * MIB)
    (tmp_path / "outside").symlink_to("/usr")
    size, files = usage.folder_size(tmp_path, 1 << 40, 1000)
    assert MIB <= size < 2 * MIB
    assert files == 4


def test_counting_stops_where_it_is_too_much(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").touch()
    assert 3 < usage.folder_size(tmp_path, 1 << 40, 3)[1] <= 21


def test_a_disk_is_counted_again_when_it_has_filled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = usage.Disk(tmp_path)
    disk.look(1 << 40, 1000)
    counts = []
    real = usage.folder_size
    monkeypatch.setattr(usage, "folder_size", lambda *a: counts.append(1) or real(*a))
    free = os.statvfs(tmp_path)
    for grown, looked in ((0, 0), (usage.LOOK_AGAIN_BYTES // 2, 0), (usage.LOOK_AGAIN_BYTES, 1)):
        left = list(free)
        left[3] -= grown // free.f_frsize
        monkeypatch.setattr(usage.os, "statvfs", lambda _, left=left: os.statvfs_result(left))
        disk._free = (free.f_bfree * free.f_frsize, free.f_ffree)
        disk.look(1 << 40, 1000)
        assert len(counts) == looked
