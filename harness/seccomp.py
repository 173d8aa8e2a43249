"""System calls that no kernel author needs, refused by a seccomp filter.

Pure up to `load`: `filter_program` returns the BPF as tuples, which a test can read and run.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from harness.errors import UnavailableError

PR_SET_SECCOMP, FILTER_MODE = 22, 2
#: (x86_64, aarch64) numbers of calls that no kernel author needs.
FORBIDDEN_CALLS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "ioprio_set": (251, 30),
}
#: Calls whose first arguments decide.
SOCKET, CLONE, CLONE3 = (41, 198), (56, 220), (435, 435)
SETPRIORITY, PRIO_USER = (141, 140), 2
#: Calls whose first argument is a process: a user may set those of all that are the user's.
OF_A_PROCESS = {
    "prlimit64": (302, 261),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
}
#: Another's SIGIO is a signal too: F_SETOWN, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
FCNTL, SET_OWNER = (72, 25), (8, 15)
IOCTL, SET_OWNER_IOCTL = (16, 29), (0x8901, 0x8902)
SIGNALS = ((62, 129), (200, 130), (234, 131), (129, 138), (297, 240), (424, 424))
AF_UNIX, AF_NETLINK = 1, 16
CLONE_NEW_ANYTHING = 0x7E020080
ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


LOAD, EQUAL, GREATER_EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, DENY = 0x7FFF0000, 0x00050000
Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def _word(argument: int) -> int:
    """Offset of the low half of a call's argument in struct seccomp_data (little endian)."""
    return 16 + 8 * argument


def filter_program(machine: str, signals_to: int | None) -> list[Instruction]:
    """BPF that forbids FORBIDDEN_CALLS, sockets beyond AF_UNIX, namespaces and others' scheduling.

    `signals_to`: the only process that may be signalled, where Landlock cannot scope signals.
    """
    column, arch = ARCHES[machine]
    deny = (RETURN, 0, 0, DENY | errno.EPERM)
    program: list[Instruction] = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, arch),
        deny,
        (LOAD, 0, 0, 0),
        (GREATER_EQUAL, 0, 1, 0x40000000),  # the x32 twin of every number
        deny,
        (EQUAL, 0, 1, CLONE3[column]),  # flags behind a pointer: libc falls back to clone
        (RETURN, 0, 0, DENY | errno.ENOSYS),
    ]
    for numbers in FORBIDDEN_CALLS.values():
        program += [(EQUAL, 0, 1, numbers[column]), deny]

    def judged(number: int, *body: Instruction) -> None:
        """`body` decides calls of `number`; it ends in a return."""
        program.extend([(EQUAL, 0, len(body), number), *body])

    allow = (RETURN, 0, 0, ALLOW)
    judged(
        SOCKET[column],
        (LOAD, 0, 0, _word(0)),
        (EQUAL, 2, 0, AF_UNIX),
        (EQUAL, 1, 0, AF_NETLINK),
        deny,
        allow,
    )
    judged(CLONE[column], (LOAD, 0, 0, _word(0)), (ANY_BIT, 0, 1, CLONE_NEW_ANYTHING), deny, allow)
    own = [(EQUAL, 1, 0, 0), (EQUAL, 0, 1, os.getpid()), allow, deny]
    for numbers in OF_A_PROCESS.values():
        judged(numbers[column], (LOAD, 0, 0, _word(0)), *own)
    a_user = [(LOAD, 0, 0, _word(0)), (EQUAL, 0, 1, PRIO_USER), deny]
    judged(SETPRIORITY[column], *a_user, (LOAD, 0, 0, _word(1)), *own)
    if signals_to is not None:
        for numbers in SIGNALS:
            judged(numbers[column], (LOAD, 0, 0, _word(0)), (EQUAL, 1, 0, signals_to), deny, allow)
        for call, (first, second) in ((FCNTL, SET_OWNER), (IOCTL, SET_OWNER_IOCTL)):
            owner = [
                (LOAD, 0, 0, _word(1)),
                (EQUAL, 1, 0, first),
                (EQUAL, 0, 1, second),
                deny,
                allow,
            ]
            judged(call[column], *owner)
    return [*program, allow]


def load(signals_to: int | None) -> None:
    """Load the filter into this process; it is inherited and cannot be taken off."""
    program = filter_program(platform.machine(), signals_to)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, header, 0, 0) < 0:
        why = os.strerror(ctypes.get_errno())
        raise UnavailableError(f"seccomp: {why}", "--sandbox 0 runs without")
