"""The filter, call by call: what is in no table is refused; arguments decide where they must."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.system_calls import decide
from harness.process.sandbox import seccomp, system_calls
from harness.process.sandbox.system_calls import JUDGED

MACHINES = sorted(seccomp.ARCHES)
TABLES = (
    system_calls.ALLOWED,
    system_calls.PRETENDED,
    system_calls.ABSENT,
    system_calls.NOT_KEPT,
    JUDGED,
)
#: Numbers of calls that must never come through: (x86_64, aarch64).
NEVER = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "fanotify_init": (300, 262),
    "inotify_add_watch": (254, 27),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "sendmsg": (46, 211),  # descriptors on their way hide files from the watch
    "sendmmsg": (307, 269),
    "splice": (275, 76),
    "vmsplice": (278, 75),
    "personality": (135, 92),
    "seccomp": (317, 277),
    "setresuid": (117, 147),
    "chown": (92, -1),
    "fchownat": (260, 54),
    "syslog": (103, 116),
    "memfd_secret": (447, 447),
    "fchmodat2": (452, 452),
    "setxattr": (188, 5),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "file_setattr": (469, 469),
}


class Filter:
    """One filter and what it answers."""

    def __init__(
        self, machine: str, alone: bool = False, held: tuple[str, ...] = ("cuts", "signals")
    ) -> None:
        self.column, self.arch = seccomp.ARCHES[machine]
        self.program = seccomp.filter_program(machine, alone, *held)

    def __call__(self, name: str, *words: int) -> int:
        number = next(table[name] for table in TABLES if name in table)[self.column]
        assert number is not None
        return self.decide(number, *words)

    def decide(self, number: int, *words: int) -> int:
        return decide(self.program, self.arch, number, *words)

    def allows(self, name: str, *words: int) -> bool:
        return self(name, *words) == seccomp.ALLOW

    def has(self, name: str) -> bool:
        return next(table[name] for table in TABLES if name in table)[self.column] is not None


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
def test_what_no_kernel_author_needs_is_refused(machine: str, alone: bool) -> None:
    found = Filter(machine, alone)
    for name, numbers in NEVER.items():
        assert found.decide(numbers[found.column]) != seccomp.ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_little_room_is_made_ahead_of_bytes(machine: str) -> None:
    """glibc then writes a byte a block, which takes longer than from one look to the next."""
    found, no = Filter(machine), seccomp.answer(errno.EOPNOTSUPP)[3]
    most = seccomp.MOST_ROOM
    assert found.allows("fallocate", 3, 0, 0, 4096)
    assert found.allows("fallocate", 3, 1, most, most)
    for start, size in ((0, most + 1), (most + 1, 1), (1 << 32, 1), (0, 1 << 32), (0, -1), (-1, 1)):
        assert found("fallocate", 3, 0, start, size) == no, (start, size)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_number_is_in_two_tables(machine: str) -> None:
    column, _ = seccomp.ARCHES[machine]
    numbers = [n[column] for table in TABLES for n in table.values() if n[column] is not None]
    assert len(numbers) == len(set(numbers))


@given(number=st.integers(0, 0xFFFFFFFF), machine=st.sampled_from(MACHINES))
def test_a_number_in_no_table_never_comes_through(number: int, machine: str) -> None:
    found = Filter(machine, alone=True)
    known = {n[found.column] for table in TABLES for n in table.values()}
    if number not in known:
        assert found.decide(number) in (seccomp.REFUSED[3], seccomp.answer(errno.ENOSYS)[3])


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide(machine: str) -> None:
    found = Filter(machine)
    close_on_exec = 0o2000000
    for name in ("socket", "socketpair"):
        for type_ in (1, 5, 1 | close_on_exec):  # streams, packets in order
            assert found.allows(name, seccomp.AF_UNIX, type_)
        for type_ in (2, 3, 2 | close_on_exec):  # to a datagram socket many senders write
            assert not found.allows(name, seccomp.AF_UNIX, type_)
        for family in (2, 10, 16, 17, 38, 40):  # INET, INET6, NETLINK, PACKET, ALG, VSOCK
            assert not found.allows(name, family, 1)
    answered = seccomp.answer(0)[3]
    for option in (7, 26, 32):  # SO_SNDBUF, SO_ATTACH_FILTER, SO_SNDBUFFORCE
        assert found("setsockopt", 3, 1, option) == answered
    assert found.allows("listen", 3, 1)  # CUDA's driver starts no process without it
    assert not found.allows("connect", 3, 0, 110)
    assert Filter(machine, alone=True).allows("connect", 3, 0, 110)
    assert found.allows("clone", 0x3D0F00)  # a thread
    assert not found.allows("clone", 0x10000000)  # a user namespace
    assert not found.allows("clone", 0x8011)  # a child of the engine
    assert found.allows("clone", 0x1200011)  # a fork: SIGCHLD to its parent
    assert not found.allows("clone", signal.SIGCONT)  # its end would wake a stopped parent
    assert not found.allows("clone", 0x3D0B00)  # a thread with files of its own
    assert not found.allows("clone", 0x911)  # a process that shares its parent's signals
    assert found.allows("clone", 0x4111)  # posix_spawn, vfork
    assert not found.allows("close_range", 3, 99, 2)  # the same of one that runs
    assert found.allows("close_range", 3, 99, 4)  # close on exec
    assert found("timer_create") == seccomp.answer(errno.ENOSYS)[3]  # it could send a SIGCONT
    assert found("clone3") == seccomp.answer(errno.ENOSYS)[3]
    for command in (8, 10, 15, 1024, 1025, 1026):  # owners of signals, leases, notices
        assert not found.allows("fcntl", 3, command)
    assert found.allows("fcntl", 3, 1030)
    for request in (0x40086602, 0x401C5820, 0x5412, 0x8901, 0x8902, 0x40049409, 0x40081271):
        assert not found.allows("ioctl", 3, request), hex(request)
    for request in (0xC020462A, 0x30000001, 0x5401, 0x541B):  # NVIDIA's, its memory's, terminals'
        assert found.allows("ioctl", 3, request), hex(request)
    for advice in (20, 21, 25, 102):  # MADV_COLD, PAGEOUT, COLLAPSE, GUARD_INSTALL
        assert found("madvise", 0, 1 << 20, advice) == seccomp.answer(errno.EINVAL)[3]
    assert found.allows("madvise", 0, 1 << 20, 4)
    assert found.allows("prctl", 15)
    assert found.allows("prctl", 4, 1)
    assert not found.allows("prctl", 4, 0)  # not dumpable: the watch sees nothing of it
    assert not found.allows("prctl", 4, 2)
    assert found.allows("prctl", 1, signal.SIGKILL)
    assert not found.allows("prctl", 1, signal.SIGCONT)  # its end would wake stopped children
    assert found.allows("prctl", 36, 1)
    assert not found.allows("prctl", 36, 0)  # its orphans would become the engine's children
    assert not found.allows("prctl", 22)  # a filter of its own
    makes = 0x41
    assert found.allows("openat", 0, 0, 0, 0o6755)  # no file is made, so there is no mode
    assert found.allows("openat", 0, 0, makes, 0o755)
    for bits in (0o4755, 0o2755):
        assert not found.allows("openat", 0, 0, makes, bits)
        assert not found.allows("openat", 0, 0, 0x410000, bits)
    for more in (0, 0o100, 0o4000, 0o2000000):  # neither to read nor to write: for ioctl alone
        assert found.allows("openat", 0, 0, 2 | more)
        assert not found.allows("openat", 0, 0, 3 | more)
        assert not found.has("open") or not found.allows("open", 0, 3 | more)
    for more in (0o1000, 0o1100):  # to cut: who may write
        assert found.allows("openat", 0, 0, 1 | more, 0o600)
        assert found.allows("openat", 0, 0, 2 | more, 0o600)
        assert not found.allows("openat", 0, 0, more, 0o600)
        assert not found.has("open") or not found.allows("open", 0, more, 0o600)
    assert found.allows("mknodat", 0, 0, 0o010600)
    for kind in (0o020600, 0o060600, 0o100600, 0o014600):  # devices, a file, set-user-id
        assert not found.allows("mknodat", 0, 0, kind)
    if found.has("open"):
        assert found.allows("open", 0, 0, 0o6755)
        assert not found.allows("open", 0, makes, 0o4755)
        assert not found.allows("creat", 0, 0o4755)


@pytest.mark.parametrize("machine", MACHINES)
def test_modes_times_and_others_pages_are_answered_and_not_changed(machine: str) -> None:
    found = Filter(machine)
    for name in (
        "chmod",
        "fchmod",
        "fchmodat",
        "utime",
        "utimes",
        "futimesat",
        "utimensat",
        "fadvise64",
    ):
        if found.has(name):
            assert found(name) == seccomp.DENY  # errno 0


@pytest.mark.parametrize("machine", MACHINES)
def test_among_others_a_process_schedules_itself_only(machine: str) -> None:
    found, alone = Filter(machine), Filter(machine, alone=True)
    for name in ("prlimit64", "sched_setaffinity"):
        assert found.allows(name, 0)
        assert not found.allows(name, os.getpid())  # a rival may be given its number
        assert alone.allows(name, os.getppid())
        assert not alone.allows(name, 1)  # the first process of its namespaces
    assert found.allows("kill", 1)  # Landlock's business


@pytest.mark.parametrize("machine", MACHINES)
def test_no_process_idles_and_no_rank_but_its_own_seems_to_change(machine: str) -> None:
    found, alone = Filter(machine), Filter(machine, alone=True)
    refused, pretended = seccomp.DENY | errno.EPERM, seccomp.DENY
    for name in seccomp.RANKS:
        assert found(name, 0) == found(name, os.getpid()) == pretended
        assert found(name, os.getppid()) == alone(name, 1) == refused
        assert alone(name, os.getppid()) == pretended
    assert found("setpriority", 0, 0) == alone("setpriority", 0, 7) == pretended
    assert found("setpriority", 0, 1) == alone("setpriority", 0, 1) == refused
    for group_or_user in (1, 2):  # the first process of the namespaces is in either
        assert alone("setpriority", group_or_user, 0) == refused


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("alone", [False, True])
def test_the_limit_of_dumps_seems_to_change_and_others_do(machine: str, alone: bool) -> None:
    """At 0 instead of 1 the host's program is piped a dump, as root, of whoever wants it to run."""
    found, core, files = Filter(machine, alone), resource.RLIMIT_CORE, resource.RLIMIT_NOFILE
    for new_limit in (1, 1 << 32, -1):
        assert found("prlimit64", 0, core, new_limit) == seccomp.DENY  # errno 0
        assert found.allows("prlimit64", 0, files, new_limit)
    assert found.allows("prlimit64", 0, core, 0)
    assert found("setrlimit", core) == seccomp.DENY
    assert found.allows("setrlimit", files)


@pytest.mark.parametrize("machine", MACHINES)
def test_an_old_kernel_lets_nobody_signal_any(machine: str) -> None:
    """Its own number is a rival's once it has ended and a fork of it lives on."""
    found = Filter(machine, held=("cuts",))
    for name in seccomp.SIGNALS:
        for number in (os.getpid(), os.getppid(), 0, -1, -os.getpid()):
            assert not found.allows(name, number)
    assert not found.allows("pidfd_send_signal", os.getpid())  # a descriptor: anybody's


@pytest.mark.parametrize("machine", MACHINES)
def test_an_old_kernel_lets_no_file_be_cut_by_its_path(machine: str) -> None:
    assert not Filter(machine, held=()).allows("truncate")
    assert Filter(machine, held=("cuts",)).allows("truncate")
    assert Filter(machine, alone=True, held=()).allows("truncate")


@pytest.mark.parametrize("machine", MACHINES)
def test_little_of_a_mapping_is_asked_for_at_once(machine: str) -> None:
    """One mincore of 15 TiB outlasted SIGKILL by minutes."""
    found = Filter(machine)
    assert found.allows("mincore", 0, 4096)
    assert found.allows("mincore", 1 << 40, seccomp.MOST_ASKED)
    for size in (seccomp.MOST_ASKED + 1, 1 << 32, 15 << 40):
        assert found("mincore", 0, size) == seccomp.DENY | errno.EINVAL


@pytest.mark.parametrize("machine", MACHINES)
def test_another_machine_s_numbers_are_refused(machine: str) -> None:
    found = Filter(machine)
    number = system_calls.ALLOWED["read"][found.column]
    assert number is not None
    assert decide(found.program, found.arch ^ 1, number) != seccomp.ALLOW
    assert found.decide(0x40000000 + number) != seccomp.ALLOW
    assert found.decide(number) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_the_kernel_takes_a_program_of_this_length(machine: str) -> None:
    found = Filter(machine)
    assert len(found.program) <= 4096
    assert all(0 <= jump <= 255 for step in found.program for jump in step[1:3])


def test_calls_are_counted_and_let_through() -> None:
    """benchmarks/system_calls.py sent its descriptor by a call that it asks about, and waited for itself."""
    script = [
        sys.executable,
        str(Path(__file__).resolve().parents[2] / "benchmarks" / "system_calls.py"),
    ]
    asked = "import os, signal; signal.alarm(9); signal.alarm(0); os.chmod('.', 0o755)"
    words = ["--also", "alarm,timerfd_create", "--", sys.executable, "-c", asked]
    done = subprocess.run(
        [*script, *words], capture_output=True, text=True, timeout=60, check=False
    )
    if "no listener" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert "| alarm |  | allowed |" in done.stdout
    assert "| chmod |  | success, and nothing is done |" in done.stdout
    assert done.stdout.endswith("of alarm, timerfd_create: alarm 2, timerfd_create 0\n")
    wrong = subprocess.run(
        [*script, "--also", "alarms", "--", "true"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "alarms: not among the calls that are allowed" in wrong.stderr
