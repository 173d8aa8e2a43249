"""What a tree of processes takes is counted whole, and what it shares only once."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import mmap
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process import process_tree
from harness.process.sandbox import enter, folders, private_root, usage
from harness.process.sandbox.enter import RIGHTS

MIB = 1 << 20


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what is mapped")


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


def test_huge_pages_and_swap_are_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "7/status": {"VmRSS": 5, "HugetlbPages": 2048, "VmSwap": 300, "VmPTE": 4},
        "7/smaps_rollup": {"Pss": 4, "Pss_Shmem": 1, "SwapPss": 200, "Swap": 300}
        | {"Private_Hugetlb": 2048, "Shared_Hugetlb": 4096},
    }
    monkeypatch.setattr(usage, "_numbers", lambda file: told.get(file, {}))
    assert usage.resident_bytes(7) == (5 + 2048 + 300) << 10
    assert usage.fair_bytes(7) == (4 + 200 + 2048 + 4096) << 10
    assert usage.fair_bytes(7, shared=False) == usage.fair_bytes(7) - (1 << 10)


ENDS_ITS_FIRST_THREAD = """
import ctypes, os, sys, threading, time
def hold():
    file = open(sys.argv[1] + "/held", "wb"); os.unlink(file.name)
    file.write(bytes(1 << 20)); file.flush()
    memory = b"x" * (64 << 20)
    time.sleep(0.2); print(flush=True); time.sleep(60)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextlib.contextmanager
def counted(program: str, folder: Path, *more: str) -> Iterator[tuple[int, usage.Nameless]]:
    """The pid of a process that has said that it holds what `program` takes, and what is counted."""
    command = [sys.executable, "-c", program, str(folder), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        held = usage.Nameless((folder,))
        held.count([child.pid])
        try:
            yield child.pid, held
        finally:
            child.kill()


def test_what_a_process_holds_is_counted_when_its_first_thread_has_ended(tmp_path: Path) -> None:
    with counted(ENDS_ITS_FIRST_THREAD, tmp_path) as (pid, held):
        found = [usage.resident_bytes(pid), usage.fair_bytes(pid)]
        told = Path(f"/proc/{pid}/status").read_text()
    assert "State:\tZ" in told
    assert min(found) > 64 * MIB
    assert usage.resident_bytes(pid) == 0
    assert held.bytes == {tmp_path: MIB}


def test_a_folder_that_a_link_leads_to_is_counted(tmp_path: Path) -> None:
    """As where /home is a link: /proc tells where a file is without any."""
    (tmp_path / "real" / "cache").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "real")
    cache = tmp_path / "home" / "cache"
    with counted(ENDS_ITS_FIRST_THREAD, cache) as (_, held):
        assert held.bytes == {cache: MIB}


MAPS_WITHOUT_A_FIRST_THREAD = ENDS_ITS_FIRST_THREAD.replace(
    "    memory = b",
    "    import mmap; map = mmap.mmap(-1, 1 << 26); map.write(bytes(1 << 26)); memory = b",
)


@root_only
def test_what_is_mapped_is_counted_when_the_first_thread_has_ended(tmp_path: Path) -> None:
    with counted(MAPS_WITHOUT_A_FIRST_THREAD, tmp_path) as (_, held):
        pass
    assert held.shared_bytes == 64 * MIB


NAMES_ITSELF_LIKE_A_LINE = ENDS_ITS_FIRST_THREAD.replace(
    "ctypes.CDLL(None).pthread_exit",
    "ctypes.CDLL(None).prctl(15, b'x\\rVmRSS: 0', 0, 0, 0); ctypes.CDLL(None).pthread_exit",
).replace("    time.sleep(0.2)", "    ctypes.CDLL(None).prctl(15, b'h', 0, 0, 0); time.sleep(0.2)")


def test_a_name_is_no_line_of_what_a_process_takes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NAMES_ITSELF_LIKE_A_LINE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        name = Path(f"/proc/{child.pid}/comm").read_bytes()
        found = usage.resident_bytes(child.pid)
        child.kill()
    assert name == b"x\rVmRSS: 0\n"
    assert found > 64 * MIB


def test_the_machine_s_own_disk_is_nobody_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose namespace is new, and whose root is still the machine's."""
    monkeypatch.setattr(usage, "_namespace", lambda place, kind: place)
    assert usage._used_bytes(Path("/tmp")) > 0
    assert usage.room_bytes([os.getpid()]) == 0


def test_what_lies_in_sockets_is_counted_with_its_process() -> None:
    me = [os.getpid()]
    before = usage.kept(me)[0]
    pairs = [socket.socketpair() for _ in range(50)]
    assert usage.kept(me)[0] - before == 100 * usage.SOCKET_BYTES
    held = usage.Nameless((), kept_bytes=1 << 30)
    assert usage.host_bytes(me, 1 << 40, held) >= usage.resident_bytes(me[0]) + (1 << 30)
    for pair in pairs:
        for one in pair:
            one.close()
    assert usage.kept(me)[0] == before


def test_mappings_of_a_thread_that_has_ended_are_counted_as_ever() -> None:
    """Looked up in vain its file is told as deleted: 1.9 GiB were told as 0.3."""
    opened: list[int] = []

    def look() -> None:
        opened.append(os.open(f"/proc/self/task/{threading.get_native_id()}", os.O_RDONLY))
        opened.append(os.open("maps", os.O_RDONLY, dir_fd=opened[0]))

    before = usage.kept([os.getpid()])[0]
    (thread := threading.Thread(target=look)).start()
    thread.join()
    try:
        with contextlib.suppress(OSError):
            while True:  # until it has left /proc
                os.stat("maps", dir_fd=opened[0])
        assert str(Path(f"/proc/self/fd/{opened[1]}").readlink()).endswith(usage.DELETED)
        assert usage.kept([os.getpid()])[0] - before >= usage.MAPPINGS_BYTES
    finally:
        for fd in opened:
            os.close(fd)


@pytest.mark.parametrize(
    ("name", "charge"),
    [("fdinfo/{}", usage.LISTING_BYTES), ("task/{thread}/fdinfo/{}", usage.LISTING_BYTES)]
    + [("status", usage.PROC_BYTES), ("maps", usage.MAPPINGS_BYTES)]
    + [("task/{thread}/smaps", usage.MAPPINGS_BYTES), ("numa_maps", usage.MAPPINGS_BYTES)],
)
def test_what_the_kernel_has_told_and_keeps_is_counted(name: str, charge: int) -> None:
    """A listing of watches or locks is as long as they are many, and stays while it is open."""
    me = [os.getpid()]
    before = usage.kept(me)[0]
    path = f"/proc/self/{name.format(0, thread=threading.get_native_id())}"
    with open(path, "rb"), open(path, "rb"):
        assert usage.kept(me)[0] - before == 2 * charge
    assert usage.kept(me)[0] == before


def test_a_listing_of_mappings_is_reckoned_as_long_as_names_can_make_it(tmp_path: Path) -> None:
    """A line feed in a name is told as four letters, and the room for a line is a power of two."""
    folder = tmp_path / ("\n" * 255)
    folder.mkdir()
    (folder / "f").write_bytes(b"x" * 4096)
    with (folder / "f").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert b"\\012" * 255 in Path("/proc/self/maps").read_bytes()
    folders = int(re.findall(r"nr_inodes=(\d+)k", inspect.getsource(private_root))[0]) << 10
    assert folders * (1 + 4 * 255) <= usage.MAPPINGS_BYTES


def test_watches_are_counted_and_again_for_files_that_an_interrupt_makes_ready() -> None:
    """Timers, signals, settings, ends: a stopped process is made ready with all that watch."""
    libc, mask, me = ctypes.CDLL(None), ctypes.create_string_buffer(128), usage.Nameless(())
    made, (pipe, end) = list[int](), os.pipe()
    others = [os.dup(pipe) for _ in range(20)]
    before = usage.kept([os.getpid()])[1]
    with select.epoll() as epoll, select.epoll():
        try:
            epoll.register(others[0])
            alone = usage.kept([os.getpid()])[1] - before
            assert alone == 2 + 1, "of a user that all share, also where no interrupt comes"
            made += [libc.timerfd_create(time.CLOCK_MONOTONIC, 0), libc.signalfd(-1, mask, 0)]
            made += [os.open("/proc/sys/kernel/hostname", os.O_RDONLY)]  # each start sets one
            made += [os.pidfd_open(os.getppid())]
            for other in others[1:]:  # a watch outlives the descriptor that it was made for
                os.dup2(made[0], other)
                epoll.register(other)
                os.close(other)
            me.look([os.getpid()])
            assert me.watches == before + 4 * (usage.ALARM_WATCHES + before + 22) + 22
            assert 64 * usage.ALARM_WATCHES < usage.MOST_WATCHES, "of forks that have one timer"
        finally:
            for fd in (*made, others[0], pipe, end):
                os.close(fd)


def test_watches_of_files_of_a_gpu_are_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on an H200: who waits for an event makes an idle process's ready, 4,000 a second.

    A terminal stands for them. Who has many, as forks of a process on the GPU, and watches none has
    no alarm.
    """
    monkeypatch.setattr(usage, "OF_A_GPU", "/dev/pts/")
    main, terminal = pty.openpty()
    copies = [os.dup(terminal) for _ in range(20)]
    me = [os.getpid()]
    with select.epoll() as epoll:
        try:
            before = usage.kept(me)[1]
            for copy in copies[:3]:
                epoll.register(copy)
            assert usage.kept(me)[1] - before == 3 + 3 * (usage.ALARM_WATCHES + before + 3)
        finally:
            for fd in (main, terminal, *copies):
                os.close(fd)


NOBODY_ACCEPTS = """
import socket, time
from harness.process.sandbox import namespaces
namespaces.libc.unshare(namespaces.NEW_USER | namespaces.NEW_NET)
server = socket.socket(socket.AF_UNIX)
server.bind("\\0here")
server.listen(64)
for _ in range(40):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect("\\0here")
        line.send(b"x" * 1000)
print(flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(bool(enter.lacking(2)), reason=enter.lacking(2))
def test_what_nobody_has_accepted_is_counted_in_a_network_of_its_own() -> None:
    command = [sys.executable, "-c", NOBODY_ACCEPTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        found = usage.kept([1 << 22, child.pid])[0]
        child.kill()
    assert found == 41 * usage.SOCKET_BYTES


def test_what_each_thread_does_is_told_by_a_letter(forks: list[int]) -> None:
    assert "R" in usage.states(os.getpid())
    assert len(usage.states(os.getpid())) == usage.threads(os.getpid())
    os.kill(forks[1], signal.SIGSTOP)
    while usage.states(forks[1]) != "T":
        time.sleep(0.001)
    os.kill(forks[2], signal.SIGKILL)
    while usage.states(forks[2]) != "Z":
        time.sleep(0.001)
    assert usage.states(1 << 22) == ""


def test_who_ends_first_is_told(forks: list[int]) -> None:
    enter.end_first(forks[1])
    assert [usage.outlives_us(pid) for pid in forks] == [True, False, True]
    assert not usage.outlives_us(1 << 22)


def test_threads_are_counted() -> None:
    before, end = usage.threads(os.getpid()), threading.Event()
    more = [threading.Thread(target=end.wait) for _ in range(3)]
    for thread in more:
        thread.start()
    assert usage.threads(os.getpid()) == before + 3
    end.set()
    for thread in more:
        thread.join()
    assert usage.threads(2**22 + 1) == 0


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


def test_what_forks_share_is_counted_once(
    forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = sum(map(usage.page_table_bytes, forks))
    assert 3 * (64 * MIB >> 9) <= tables < 64 * MIB, "eight bytes a page of 4 KiB, in each of them"
    bound = sum(map(usage.resident_bytes, forks)) + tables
    told = usage.host_bytes(forks, limit=1 << 40)
    assert abs(told - bound) < 4 * MIB, "the bound suffices where it is low"
    exact = usage.host_bytes(forks, limit=bound - 4 * MIB)
    assert exact < bound - 100 * MIB
    assert exact > 64 * MIB
    one = max(map(usage.resident_bytes, forks)) + tables + 8 * MIB
    asked: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(usage, "fair_bytes", lambda pid, shared: asked.append(pid) or one)
        assert usage.host_bytes(forks, limit=32 * MIB) > 64 * MIB
        assert asked == [], "what one has mapped is there"
        assert usage.host_bytes(forks, limit=one) > one
        assert len(asked) == 1, "no more is asked than it takes"
    monkeypatch.setattr(usage, "WALKED_BYTES", tables // 2)
    assert usage.host_bytes(forks, limit=one) > exact + 100 * MIB, "to know would take too long"


def test_forks_that_end_while_they_are_counted_hold_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool of 120 that ended at once had the memory of 120 whole processes."""
    told = iter([64 * MIB, 64 * MIB, 0, 64 * MIB])
    monkeypatch.setattr(usage, "resident_bytes", lambda pid: next(told))
    monkeypatch.setattr(usage, "fair_bytes", lambda pid, shared: 0)
    assert 64 * MIB <= usage.host_bytes([1 << 22, 1 + (1 << 22)], 70 * MIB) < 66 * MIB


def test_who_is_ready_and_has_no_core_is_starved() -> None:
    assert 0 <= usage.starved_s([os.getpid()]) < 1e6
    assert usage.starved_s([1 << 22]) == 0


@root_only
def test_shared_memory_is_counted_when_no_page_of_it_is_mapped() -> None:
    me = [os.getpid()]
    held = usage.Nameless(())
    held.look(me)
    kept = mmap.mmap(-1, 64 * MIB)
    kept.write(b"x" * len(kept))
    before = usage.resident_bytes(me[0])
    kept.madvise(mmap.MADV_DONTNEED)
    assert usage.resident_bytes(me[0]) < before - 60 * MIB
    held.look(me)
    assert 64 * MIB <= held.shared_bytes < 96 * MIB
    known = usage.host_bytes(me, 0, held)
    assert known > usage.host_bytes(me, 0) + 60 * MIB
    assert kept[:1] == b"x", "it was there all the time"
    kept.close()
    held.count(me)
    assert held.shared_bytes < 32 * MIB


@root_only
def test_shared_memory_that_grows_as_fast_as_a_file_in_memory_shrinks_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "_numbers", lambda file: {"Shmem": 1 << 20})  # never moves
    held = usage.Nameless(())
    with mmap.mmap(-1, 64 * MIB) as kept:
        kept.write(b"x" * len(kept))
        held.look([os.getpid()])
        assert held.shared_bytes == 0
        monkeypatch.setattr(usage, "SHARED_AGAIN_S", 0.0)
        held.look([os.getpid()])
        assert 64 * MIB <= held.shared_bytes < 96 * MIB


def test_managed_memory_is_what_is_mapped_of_the_driver_s_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = [os.getpid()]
    assert usage.managed_bytes(me) == 0
    maps = (
        b"7f0000000000-7f0040000000 rw-s 7f97b6000000 00:06 177  /dev/nvidia-uvm\n"
        b"7f0080000000-7f0090000000 rw-s 00000000 00:01 15372    /dev/zero (deleted)\n"
    )
    with monkeypatch.context() as patched:
        patched.setattr(usage, "_mappings", lambda *_: maps)
        assert usage.managed_bytes(me * 2) == 2 << 30
    monkeypatch.setattr(usage, "MOST_MAPPINGS_BYTES", 1000)  # less than a Python has
    assert usage.managed_bytes(me) == folders.UNCOUNTED


def test_of_all_mappings_of_an_entrant_no_more_is_read_than_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """400 forks with 15 MiB each: for 39 s nobody looked at how much of the GPU it took."""
    asked = []
    told = b"x" * (usage.MOST_MAPPINGS_BYTES - 1)
    monkeypatch.setattr(usage, "_threads_of", lambda pid: [str(pid)])
    monkeypatch.setattr(usage, "_mappings", lambda path, most: asked.append(path) or told[:most])
    assert usage.managed_bytes(range(400)) == folders.UNCOUNTED
    assert len(asked) == 2


def test_open_files_are_counted_by_the_room_for_them() -> None:
    before = usage.descriptors(os.getpid())
    assert 64 <= before < usage.DESCRIPTORS
    high = os.dup2(0, 2 * before)
    try:
        assert usage.descriptors(os.getpid()) > 2 * before
    finally:
        os.close(high)
    assert usage.descriptors(1 << 22) == 0


def test_a_file_without_a_name_is_counted_where_it_lay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    (cache / "deep").mkdir(parents=True)
    other.mkdir()
    used = [0]
    monkeypatch.setattr(usage, "_used_bytes", lambda folder: used[0])
    held = usage.Nameless((cache, other))
    held.look([os.getpid()])
    with (cache / "deep" / "file").open("wb") as file:
        file.write(b"x" * MIB)
        file.flush()
        (cache / "deep" / "file").unlink()
        held.look([os.getpid()])
        assert not held.bytes, "the disk has not grown"
        used[0] += usage.LOOK_AGAIN_BYTES
        held.look([os.getpid(), 1 << 22])
        assert MIB <= held.bytes[cache] < 2 * MIB
        assert held.bytes[other] == 0
    used[0] -= usage.LOOK_AGAIN_BYTES // 2
    held.look([os.getpid()])
    used[0] += usage.LOOK_AGAIN_BYTES // 2
    held.look([os.getpid()])
    assert held.bytes[cache], "since the last count it has not grown by so much"
    used[0] += usage.LOOK_AGAIN_BYTES // 2
    held.look([os.getpid()])
    assert held.bytes[cache] == 0, "from the least that was used since, it has"


def test_a_file_whose_last_path_was_too_long_is_counted_all_the_same(tmp_path: Path) -> None:
    name, levels, home = "d" * 250, 20, Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(levels):
            os.mkdir(name)  # noqa: PTH102 - no path reaches so far
            os.chdir(name)
        file = os.open("file", os.O_CREAT | os.O_RDWR, 0o600)
        os.unlink("file")  # noqa: PTH108
        for _ in range(levels):
            os.chdir("..")
            os.rmdir(name)  # noqa: PTH106
    finally:
        os.chdir(home)
    os.write(file, bytes(MIB))
    held = usage.Nameless((tmp_path,))
    held.count([os.getpid()])
    os.close(file)
    assert held.bytes == {tmp_path: MIB}
    assert not list(tmp_path.iterdir())


RUNS_WHAT_HAS_NO_NAME = """
import os, shutil, sys, time
os.chdir(sys.argv[1])
for _ in range(int(sys.argv[2])):
    os.mkdir("d" * 250); os.chdir("d" * 250)
shutil.copy("/bin/sleep", "program"); os.truncate("program", os.path.getsize("program") + (1 << 20))
pid = os.posix_spawn("program", ["program", "60"], {}); time.sleep(0.2); os.unlink("program")
for _ in range(int(sys.argv[2])):
    os.chdir(".."); os.rmdir("d" * 250)
print(flush=True); time.sleep(60)
"""


@pytest.mark.parametrize("levels", ["0", "20"])
def test_the_program_of_a_process_is_counted_when_nothing_of_it_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: str
) -> None:
    """Nor any path can name it."""
    with counted(RUNS_WHAT_HAS_NO_NAME, tmp_path, levels) as (pid, held):
        (program,) = process_tree.descendants(pid)
        real = usage._links_of
        monkeypatch.setattr(
            usage, "_links_of", lambda pid, kind: () if kind == "map_files" else real(pid, kind)
        )
        held.count([program, pid])
        kept = [Path(f"/proc/{program}", kind).stat() for kind in ("exe", "cwd")]
        size = sum(each.st_blocks * 512 for each in kept if not each.st_nlink)
        os.kill(program, signal.SIGKILL)
    assert held.bytes == {tmp_path: size}


STANDS_WHERE_NO_NAME_LEADS = """
import os, sys, time
os.chdir(sys.argv[1]); os.mkdir("d"); os.chdir("d")
names = [f"{n:0250}" for n in range(500)]
for name in names: open(name, "w").close()
for name in names: os.unlink(name)
os.rmdir("../d")
print(flush=True); time.sleep(60)
"""


def test_a_folder_without_a_name_in_which_somebody_stands_is_counted(tmp_path: Path) -> None:
    """It keeps the blocks that its names took: 503 MiB where 205 were allowed."""
    with counted(STANDS_WHERE_NO_NAME_LEADS, tmp_path) as (pid, held):
        size = Path(f"/proc/{pid}/cwd").stat().st_blocks * 512
        if not size:
            pytest.skip("no folder of this file system takes blocks")
        assert held.bytes == {tmp_path: size}


HOLDS_MUCH_IN_MANY_THREADS = """
import os, sys, threading, time
file = open(sys.argv[1] + "/held", "wb"); os.unlink(file.name)
file.write(bytes(1 << 20)); file.flush()
for _ in range(900): os.dup(file.fileno())
for _ in range(300): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True); time.sleep(60)
"""


@pytest.mark.parametrize(("bound", "value"), [("LINKS", 900), ("LISTED_S", 1e-4)])
def test_threads_share_what_is_open_and_too_much_to_count_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    with counted(HOLDS_MUCH_IN_MANY_THREADS, tmp_path) as (pid, held):
        assert held.bytes == {tmp_path: MIB}, "900 files are no 270,000"
        monkeypatch.setattr(usage, bound, value)
        with pytest.raises(usage.Uncounted):
            held.count([pid])
        with pytest.raises(usage.Uncounted):
            held.look([pid])


KEEPS_THE_LOCK_OF_ITS_MEMORY = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
file = os.open(sys.argv[1] + "/held", os.O_CREAT | os.O_RDWR); os.write(file, bytes(8192))
start = libc.mmap(None, 4096 * 20000, 0, 0x22, -1, 0)
for i in range(20000): libc.mmap(start + 4096 * i, 4096, 1, 0x12, file, 4096 * (i % 2 ^ 1))
def keep():
    while True: libc.mprotect(start, 4096 * 20000, 1); libc.mprotect(start, 4096 * 20000, 3)
for _ in range(8): threading.Thread(target=keep, daemon=True).start()
print(flush=True); time.sleep(60)
"""


@root_only
def test_who_makes_a_listing_wait_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes none of our processor time."""
    monkeypatch.setattr(usage, "LISTED_S", 0.3)
    command = [sys.executable, "-c", KEEPS_THE_LOCK_OF_ITS_MEMORY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        begun_s = time.thread_time()
        held = usage.Nameless((tmp_path,))
        with pytest.raises(usage.Uncounted):
            held.count([child.pid])
        assert time.thread_time() - begun_s < 0.3
        os.kill(child.pid, signal.SIGSTOP)
        held.clock = time.thread_time
        held.count([child.pid])
        child.kill()


def test_of_who_is_stopped_only_our_own_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where looks at others, or a busy host, make ours wait."""
    wall, ours = itertools.count(0.0, 3.0), itertools.count(0.0, 0.5)
    monkeypatch.setattr(usage, "_links_of", lambda pid, kind: ["/nowhere"])
    held = usage.Nameless((), clock=lambda: next(wall))
    with pytest.raises(usage.Uncounted):
        held.count([os.getpid()])
    held.clock = lambda: next(ours)
    held.count([os.getpid()])


RUNS_WHAT_IT_MAY_NOT_READ = """
import ctypes, os, sys, time
from pathlib import Path
from harness.process.sandbox import usage
libc = ctypes.CDLL(None)
os.setresuid(65534, 65534, 65534)
def counted(program):
    pid = os.posix_spawn(program, [program, "20"], {})
    while "sleep" not in Path(f"/proc/{pid}/comm").read_text():
        time.sleep(0.001)
    try:
        hidden = usage.Nameless((Path("/tmp"),)).count([pid])
    except usage.Uncounted:
        hidden = True
    os.kill(pid, 9)
    while usage.states(pid) != "Z":
        time.sleep(0.001)
    return bool(hidden), usage.hides_its_files(pid)
libc.prctl(4, 1, 0, 0, 0)
print(counted("/bin/sleep"), counted(sys.argv[1]))
"""


WITHOUT_PTRACE = """
import ctypes, os
libc = ctypes.CDLL(None)
def keep(told):
    head, words = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(head, words)
    words[:] = [told(word) for word in words]
    assert libc.capset(head, words) == 0
def spawn(program, words, environ):
    if (pid := os.fork()) == 0:
        libc.prctl(38, 1, 0, 0, 0)  # as behind the walls: without rights of root, and none to get
        keep(lambda word: 0)
        os.execve(program, words, environ)
    return pid
keep(lambda word: word & ~(1 << 19))
os.posix_spawn = spawn
"""


@root_only
@pytest.mark.parametrize("who", ["another user", "root of a plain container"])
def test_who_runs_what_it_may_not_read_is_not_counted_but_ended(who: str) -> None:
    """Root that may not trace could list its files, and took each link for its own target."""
    without = RUNS_WHAT_IT_MAY_NOT_READ.replace("os.setresuid(65534, 65534, 65534)", WITHOUT_PTRACE)
    script = RUNS_WHAT_IT_MAY_NOT_READ if who == "another user" else without
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        program = Path(shutil.copy("/bin/sleep", f"{folder}/sleep"))
        program.chmod(0o111)
        command = [sys.executable, "-c", script, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split("\n")[0] == "(False, False) (True, False)", done.stderr


@root_only
@pytest.mark.parametrize("bit", [*RIGHTS, 24])
def test_root_without_rights_over_its_workers_has_no_wall_of_another_user(bit: int) -> None:
    """It counted none of their files, could end none of them, and removed no cache of theirs."""
    asks = "\nfrom harness.process.sandbox import enter\nprint(enter.lacking(2))"
    command = [sys.executable, "-c", WITHOUT_PTRACE.replace("1 << 19", f"1 << {bit}") + asks]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    lacks = f"root has no rights over its workers: add CAP_{RIGHTS.get(bit)}\n"
    assert (done.stdout == lacks) == (bit in RIGHTS), done
