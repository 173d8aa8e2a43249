"""The system calls that an untrusted process may make, as a seccomp filter: by allow-list.

Pure up to `load`: `filter_program` returns tuples, which benchmarks/system_calls.py runs.
The calls and their numbers are in harness/process/sandbox/system_calls.py.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Container, Iterable

from harness.process.process_tree import checked, libc
from harness.process.sandbox import system_calls
from harness.process.sandbox.system_calls import JUDGED

PR_SET_SECCOMP, FILTER_MODE = 22, 2
ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
LOAD, AND, RETURN = 0x20, 0x54, 0x06
EQUAL, GREATER_EQUAL, ANY_BIT = 0x15, 0x35, 0x45
ALLOW, DENY, ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

#: Of the two types a buffer has one sender, and each is listed: harness/process/sandbox/usage.py.
AF_UNIX, SOCKET_TYPE, SOCKET_TYPES = 1, 0xF, (1, 5)  # streams, packets in order
#: A child of its parent's would be one of the engine's, and nobody's to count or to stop.
CLONE_PARENT, CLONE_NEW_ANYTHING = 0x8000, 0x7E020080
#: A thread shares its process's files, which are counted once; and none but a thread its signals,
#: of which one to each of many processes would be told to each watch of one of them.
CLONE_THREAD, THREAD_AND_FILES, CLOSE_RANGE_UNSHARE = 0x10000, 0x10400, 2
SIGNALS_OR_THREAD, CLONE_SIGHAND = 0x10800, 0x800
MAKES_A_FILE = 0x40 | 0x400000  # O_CREAT, O_TMPFILE
#: Neither to read nor to write, for ioctl alone, of which Landlock asks nothing, whatever the file;
#: and O_TRUNC of what is not opened for writing: before ABI 3 it takes that for reading.
ACCESS, UNASKED = 0o1003, (0o3, 0o1003, 0o1000)
#: A file made with these bits runs as its owner, whoever starts it.
SET_ID_BITS = 0o6000
ALL_BUT_MODE, NAMED_PIPE = 0o177777 & ~0o1777, 0o010000
PRIO_PROCESS = 0  # of its group one is the first process of its namespaces
#: Duplicates, flags, locks, sizes of pipes, seals. Not among them: owners of signals, leases,
#: notices.
FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1027, 1030, 1031, 1032, 1033, 1034)
#: Kinds of device requests (bits 8 to 15): NVIDIA's and its video memory manager's (0), display
#: modes, terminals. Not among them: file systems (flags, quotas, encryption, clones), sockets,
#: block devices.
IOCTL_KINDS = (ord("F"), 0, ord("m"), ord("T"))
#: Terminal requests that put words into somebody's mouth: TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCCONS.
IOCTLS_REFUSED = (0x5412, 0x541C, 0x540E, 0x541D)
#: Death signals, names, timer slack, no_new_privs, huge pages, names of mappings; and what is only
#: asked.
PRCTLS = (1, 2, 3, 15, 16, 21, 23, 27, 29, 30, 37, 38, 39, 41, 42, 47, 52, 0x53564D41)
#: Who is not dumpable hides its memory and its files from the watch, where that is not root's.
PR_SET_DUMPABLE, DUMPABLE = 4, 1
#: Who lets go of what it adopted sends it to the engine.
PR_SET_CHILD_SUBREAPER, ADOPTS = 36, 1
#: What ends may send a signal: to its parent the one in these bits of `clone`, to children this.
EXIT_SIGNAL, PR_SET_PDEATHSIG = 0xFF, 1
#: Room for a file ahead of its bytes: with more a disk was full in 28 ms, before the watch looked.
#: CUDA's driver may want some for what it shares.
MOST_ROOM = 1 << 20
#: Of a mapping at once, whether it is in memory: no signal ends that, of 15 TiB it took minutes.
MOST_ASKED = 64 << 20
#: MADV_COLD, MADV_PAGEOUT: of a file that is its user's they drop what a rival will load.
RECLAIMS = (20, 21)
#: From MADV_COLLAPSE on: they make pages or tables of terabytes in one call that no signal ends.
NEWER_ADVICE = 25
#: Its own is answered and not done: a thread that idles and is starved beside its own processes
#: kept locks of the kernel, and with them renames on its file system, for a minute.
RANKS = ("sched_setscheduler", "sched_setparam", "sched_setattr")
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")


def answer(code: int) -> Instruction:
    """Return `code` to the caller as its error; 0 says that all went well."""
    return (RETURN, 0, 0, DENY | code)


DONE, REFUSED = (RETURN, 0, 0, ALLOW), answer(errno.EPERM)


def word(argument: int, half: int = 0) -> Instruction:
    """Load the low or high half of a call's argument (struct seccomp_data, little endian)."""
    return (LOAD, 0, 0, 16 + 8 * argument + 4 * half)


def each(values: Iterable[int], instruction: Instruction) -> list[Instruction]:
    """Do `instruction` if what is loaded is one of `values`."""
    return [step for value in values for step in ((EQUAL, 0, 1, value), instruction)]


def only(values: Iterable[int], otherwise: Instruction = REFUSED) -> list[Instruction]:
    """Allow if what is loaded is one of `values`."""
    return [*each(values, DONE), otherwise]


def at_most(argument: int, most: int, otherwise: Instruction) -> list[Instruction]:
    """Go on if all 64 bits of an argument are no more than `most`, which has 32."""
    return [
        step
        for half, top in ((0, most), (1, 0))
        for step in (word(argument, half), (GREATER_EQUAL, 0, 1, top + 1), otherwise)
    ]


def unless_bits(bits: int) -> list[Instruction]:
    """Allow if none of `bits` is set in what is loaded."""
    return [(ANY_BIT, 0, 1, bits), REFUSED, DONE]


def filter_program(machine: str, alone: bool, *held: str) -> list[Instruction]:
    """BPF that lets through what system_calls.py allows.

    alone: the process sees none but its own (level 2), so that it may schedule and signal all it
    sees. held: what Landlock holds here of "cuts" and "signals"; else no file is cut by its
    path, and nobody signals any.
    """
    column, arch = ARCHES[machine]
    absent = answer(errno.ENOSYS)
    program: list[Instruction] = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, arch),
        REFUSED,
        (LOAD, 0, 0, 0),
        (GREATER_EQUAL, 0, 1, 0x40000000),  # the x32 twin of every number
        REFUSED,
        (GREATER_EQUAL, 0, 1, system_calls.NEWER_FROM),
        absent,
    ]
    tables = (
        (system_calls.ALLOWED, DONE),
        (system_calls.PRETENDED, answer(0)),
        (system_calls.ABSENT, absent),  # clone3: its flags are behind a pointer
        (system_calls.NOT_KEPT, answer(errno.ENOTSUP)),
    )
    for table, instruction in tables:
        numbers = (call[column] for call in table.values())
        program += each((n for n in numbers if n is not None), instruction)
    for name, body in _judgements(alone, held):
        if (number := JUDGED[name][column]) is not None:
            program += [(EQUAL, 0, len(body), number), *body]
    return [*program, REFUSED]


def _judgements(alone: bool, held: Container[str]) -> Iterable[tuple[str, list[Instruction]]]:
    """(name, what decides its calls): each body ends in a return on every way."""
    for name, mode in (("open", 2), ("openat", 3)):  # without these flags there is no mode
        how = [word(mode - 1), (AND, 0, 0, ACCESS), *each(UNASKED, REFUSED), word(mode - 1)]
        makes = [(ANY_BIT, 1, 0, MAKES_A_FILE), DONE, word(mode)]
        yield name, [*how, *makes, *unless_bits(SET_ID_BITS)]
    yield "creat", [word(1), *unless_bits(SET_ID_BITS)]
    for name, mode in (("mknod", 1), ("mknodat", 2)):
        yield name, [word(mode), (AND, 0, 0, ALL_BUT_MODE), *only([NAMED_PIPE])]
    for name in ("socket", "socketpair"):
        local = [word(0), (EQUAL, 1, 0, AF_UNIX), answer(errno.EACCES), word(1)]
        types = only(SOCKET_TYPES, answer(errno.EPROTONOSUPPORT))
        yield name, [*local, (AND, 0, 0, SOCKET_TYPE), *types]
    # Who waits to be accepted has a buffer, and among others nobody could tell whose it is. To
    # listen takes a name alone, and CUDA's driver does it when it starts.
    yield "connect", [DONE] if alone else [answer(errno.ECONNREFUSED)]
    # A SIGCONT from there would let a process go on that was stopped behind its turn.
    spaces = [(ANY_BIT, 0, 1, CLONE_NEW_ANYTHING | CLONE_PARENT), REFUSED]
    apart = [(AND, 0, 0, THREAD_AND_FILES), (EQUAL, 0, 1, CLONE_THREAD), REFUSED, word(0)]
    signals = [(AND, 0, 0, SIGNALS_OR_THREAD), (EQUAL, 0, 1, CLONE_SIGHAND), REFUSED, word(0)]
    sends = [(AND, 0, 0, EXIT_SIGNAL), *only([0, signal.SIGCHLD])]
    yield "clone", [word(0), *spaces, *apart, *signals, *sends]
    no, unknown = answer(errno.EOPNOTSUPP), answer(errno.EINVAL)
    yield "fallocate", [*at_most(2, MOST_ROOM, no), *at_most(3, MOST_ROOM, no), DONE]
    yield "mincore", [*at_most(1, MOST_ASKED, unknown), DONE]
    newer = [(GREATER_EQUAL, 0, 1, NEWER_ADVICE), unknown]
    yield "madvise", [word(2), *each(RECLAIMS, unknown), *newer, DONE]
    yield "close_range", [word(2), *unless_bits(CLOSE_RANGE_UNSHARE)]
    kinds = only([kind << 8 for kind in IOCTL_KINDS], answer(errno.ENOTTY))
    yield "ioctl", [word(1), *each(IOCTLS_REFUSED, REFUSED), (AND, 0, 0, 0xFF00), *kinds]
    shown = [word(1), *only([DUMPABLE], answer(errno.EINVAL))]
    death = [word(1), (EQUAL, 0, 1, signal.SIGCONT), REFUSED, DONE]
    adopts = [word(1), *only([ADOPTS])]
    judged = ((PR_SET_DUMPABLE, shown), (PR_SET_PDEATHSIG, death), (PR_SET_CHILD_SUBREAPER, adopts))
    which = [step for code, body in judged for step in ((EQUAL, 0, len(body), code), *body)]
    yield "prctl", [word(0), *which, *only(PRCTLS, answer(errno.EINVAL))]
    yield "fcntl", [word(1), *only(FCNTLS)]
    # Its bound is 1, at which none is dumped; at 0 the host's program is piped a dump as root.
    yield "setrlimit", [word(0), *each([resource.RLIMIT_CORE], answer(0)), DONE]
    asks = at_most(2, 0, answer(0))  # without a new limit
    core = [word(1), (EQUAL, 0, len(asks), resource.RLIMIT_CORE), *asks]

    def own(done: Instruction, *numbers: int) -> list[Instruction]:  # 1 is the walls' own
        if alone:
            return [*each([1], REFUSED), done]
        return [*each([0], done), *each(numbers, answer(0)), REFUSED]

    # Its number is another's once it has ended and a fork of it lives on: answered, not done.
    yield "prlimit64", [*core, word(0), *own(DONE)]
    yield "sched_setaffinity", [word(0), *own(DONE, os.getpid())]
    pretended = [word(0), *own(answer(0), os.getpid())]
    for name in RANKS:
        yield name, pretended
    yield "setpriority", [word(0), (EQUAL, 1, 0, PRIO_PROCESS), REFUSED, word(1), *pretended[1:]]
    for name in SIGNALS:
        yield name, [DONE if alone or "signals" in held else REFUSED]
    yield "truncate", [DONE if alone or "cuts" in held else REFUSED]  # ninja mends its log by it


def load(alone: bool, *held: str) -> None:
    """Load the filter into this process; it is inherited and cannot be taken off."""
    program = filter_program(platform.machine(), alone, *held)
    header, kept = packed(program)
    checked("seccomp", libc.prctl(PR_SET_SECCOMP, FILTER_MODE, header, 0, 0), 0)
    del kept


def packed(program: list[Instruction]) -> tuple[ctypes.Array[ctypes.c_char], object]:
    """The kernel's `sock_fprog` of `program`, and what must live as long as it."""
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    return ctypes.create_string_buffer(header, len(header)), buffer
