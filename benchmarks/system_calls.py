"""Which system calls of a program the walls would not let through, with their arguments.

    python benchmarks/system_calls.py -- COMMAND ...

Every call that harness/process/sandbox/system_calls.py does not allow outright stops in the kernel and is asked
about here, counted, and then let through: the program runs as if there were no walls. It starts
without any; run it where there is nothing to fear from COMMAND. Calls that are answered and not
done are listed too.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import select
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.process import process_tree  # noqa: E402
from harness.process.sandbox import seccomp, system_calls  # noqa: E402

SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER, NEW_LISTENER, CONTINUE = 1, 1 << 3, 1
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTICE, REPLY = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
PR_SET_NO_NEW_PRIVS = 38
KEPT_ARGUMENTS = {"ioctl": 1, "fcntl": 1, "prctl": 0, "socket": 0, "openat": 3}

libc = ctypes.CDLL(None, use_errno=True)


def decide(program: Sequence[seccomp.Instruction], arch: int, number: int, *words: int) -> int:
    """What `program` returns for one call with the arguments `words`."""
    data = {0: number, 4: arch} | {16 + 8 * i: word & 0xFFFFFFFF for i, word in enumerate(words)}
    at = loaded = 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        if code == seccomp.RETURN:
            return constant
        if code == seccomp.LOAD:
            loaded = data.get(constant, 0)
        elif code == seccomp.AND:
            loaded &= constant
        else:
            holds = {
                seccomp.EQUAL: loaded == constant,
                seccomp.GREATER_EQUAL: loaded >= constant,
                seccomp.ANY_BIT: bool(loaded & constant),
            }[code]
            at += yes if holds else no


def asking(machine: str) -> list[seccomp.Instruction]:
    """The filter that asks about whatever is not allowed outright."""
    column, _ = seccomp.ARCHES[machine]
    ask = (seccomp.RETURN, 0, 0, seccomp.ASK)
    program: list[seccomp.Instruction] = [(seccomp.LOAD, 0, 0, 0)]
    for numbers in system_calls.ALLOWED.values():
        if numbers[column] is not None:
            program += [(seccomp.EQUAL, 0, 1, numbers[column]), seccomp.DONE]
    return [*program, ask]


def start(words: list[str]) -> int:
    """Start the command behind the asking filter; the descriptor on which the kernel asks."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        process_tree.die_with_parent()
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        header, _kept = seccomp.packed(asking(platform.machine()))
        number = SECCOMP[platform.machine()]
        fd = libc.syscall(number, SET_MODE_FILTER, NEW_LISTENER, header)
        socket.send_fds(theirs, [b"x"], [fd])
        os.close(fd)
        os.execvp(words[0], words)
    theirs.close()
    return socket.recv_fds(ours, 1, 1)[1][0]


def names(machine: str) -> dict[int, str]:
    """Name of every number in the tables; others stay numbers."""
    column, _ = seccomp.ARCHES[machine]
    tables = [system_calls.PRETENDED, system_calls.ABSENT, system_calls.NOT_KEPT]
    tables.append(system_calls.JUDGED)
    return {n[column]: name for table in tables for name, n in table.items() if n[column]}


def count(listener: int) -> Counter[tuple[str, str, str]]:
    """Let everything through until all processes are gone; (call, argument, answer) → how often."""
    machine, found = platform.machine(), Counter[tuple[str, str, str]]()
    _, arch = seccomp.ARCHES[machine]
    program, known = seccomp.filter_program(machine, alone=True), names(machine)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        events = poll.poll()
        if any(mask & select.POLLHUP for _, mask in events):
            return found
        notice = ctypes.create_string_buffer(NOTICE.size)
        if libc.ioctl(listener, ctypes.c_ulong(RECEIVE), notice) < 0:
            continue  # it died while it asked
        key, _pid, _flags, number, _arch, _at, *words = NOTICE.unpack(notice.raw)
        reply = ctypes.create_string_buffer(REPLY.pack(key, 0, 0, CONTINUE), REPLY.size)
        libc.ioctl(listener, ctypes.c_ulong(SEND), reply)
        code = decide(program, arch, number, *words)
        if code != seccomp.ALLOW:
            name = known.get(number, f"number {number}")
            place = KEPT_ARGUMENTS.get(name)
            argument = "" if place is None else hex(words[place])
            found[name, argument, told(code)] += 1


def told(code: int) -> str:
    """What the filter's answer means."""
    error = code & 0xFFFF
    return f"errno {error} ({os.strerror(error)})" if error else "success, and nothing is done"


def main() -> int:
    """Run, print the table, most frequent first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    words = parser.parse_args().command
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = count(start(words[1:] if words[:1] == ["--"] else words))
    print("| call | argument | answer behind the walls | times |\n|---|---|---|---|")
    for (name, argument, answer), times in found.most_common():
        print(f"| {name} | {argument} | {answer} | {times} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
