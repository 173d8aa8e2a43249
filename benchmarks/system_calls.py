"""Which system calls of a program the walls would not let through, with their arguments.

    python benchmarks/system_calls.py -- COMMAND ...
    python benchmarks/system_calls.py --also timerfd_create,alarm -- COMMAND ...

Every call that harness/process/sandbox/system_calls.py does not allow outright stops in the kernel and is asked
about here, counted, and then let through: the program runs as if there were no walls. It starts
without any; run it where there is nothing to fear from COMMAND. Calls that are answered and not
done are listed too, and of those that are allowed the ones named by --also: who still needs them.
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
PIDFD_GETFD = 438  # on every architecture
SET_MODE_FILTER, NEW_LISTENER, CONTINUE = 1, 1 << 3, 1
RECEIVE, SEND = 0xC0502100, 0xC0182101
NOTICE, REPLY = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
PR_SET_NO_NEW_PRIVS = 38
KEPT_ARGUMENTS = {"ioctl": 1, "fcntl": 1, "prctl": 0, "socket": 0, "openat": 3}

libc = ctypes.CDLL(None, use_errno=True)


def decide(program: Sequence[seccomp.Instruction], arch: int, number: int, *words: int) -> int:
    """What `program` returns for one call with the arguments `words`."""
    data = {0: number, 4: arch} | {16 + 8 * i: word & 0xFFFFFFFF for i, word in enumerate(words)}
    data |= {20 + 8 * i: word >> 32 & 0xFFFFFFFF for i, word in enumerate(words)}
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


def asking(machine: str, also: Sequence[str] = ()) -> list[seccomp.Instruction]:
    """The filter that asks about whatever is not allowed outright, and about `also`."""
    column, _ = seccomp.ARCHES[machine]
    ask = (seccomp.RETURN, 0, 0, seccomp.ASK)
    program: list[seccomp.Instruction] = [(seccomp.LOAD, 0, 0, 0)]
    for name, numbers in system_calls.ALLOWED.items():
        if numbers[column] is not None and name not in also:
            program += [(seccomp.EQUAL, 0, 1, numbers[column]), seccomp.DONE]
    return [*program, ask]


def start(words: list[str], also: Sequence[str] = ()) -> int:
    """Start the command behind the asking filter; the descriptor on which the kernel asks."""
    ours, theirs = socket.socketpair()
    if not (child := os.fork()):
        process_tree.die_with_parent()
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        header, _kept = seccomp.packed(asking(platform.machine(), also))
        number = SECCOMP[platform.machine()]
        fd = libc.syscall(number, SET_MODE_FILTER, NEW_LISTENER, header)
        os.write(theirs.fileno(), str(fd).encode())  # sendmsg is asked about: nobody answers yet
        os.read(theirs.fileno(), 1)
        os.close(fd)
        os.execvp(words[0], words)
    theirs.close()
    at = int(os.read(ours.fileno(), 16))
    listener = libc.syscall(PIDFD_GETFD, os.pidfd_open(child), at, 0)
    if listener < 0:
        raise SystemExit(f"no listener: {os.strerror(ctypes.get_errno())}; run it as root")
    os.write(ours.fileno(), b"x")
    return listener


def names(machine: str) -> dict[int, str]:
    """Name of every number in the tables; others stay numbers."""
    column, _ = seccomp.ARCHES[machine]
    tables = [system_calls.PRETENDED, system_calls.ABSENT, system_calls.NOT_KEPT]
    tables += [system_calls.JUDGED, system_calls.ALLOWED]
    return {n[column]: name for table in tables for name, n in table.items() if n[column]}


def count(listener: int) -> Counter[tuple[str, str, str, str]]:
    """Let all through until no process is left; (call, argument, answer, process) → how often."""
    machine, found = platform.machine(), Counter[tuple[str, str, str, str]]()
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
        key, pid, _flags, number, _arch, _at, *words = NOTICE.unpack(notice.raw)
        caller = called(pid)  # it waits for the reply
        reply = ctypes.create_string_buffer(REPLY.pack(key, 0, 0, CONTINUE), REPLY.size)
        libc.ioctl(listener, ctypes.c_ulong(SEND), reply)
        code, name = decide(program, arch, number, *words), known.get(number, f"number {number}")
        if code != seccomp.ALLOW or name in system_calls.ALLOWED:
            place = KEPT_ARGUMENTS.get(name)
            argument = "" if place is None else hex(words[place])
            found[name, argument, told(code), caller] += 1


def called(pid: int) -> str:
    """What a process or thread is called: judge, worker, cuda-EvtHandlr."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def told(code: int) -> str:
    """What the filter's answer means."""
    if code == seccomp.ALLOW:
        return "allowed"
    error = code & 0xFFFF
    return f"errno {error} ({os.strerror(error)})" if error else "success, and nothing is done"


def counted(found: Counter[tuple[str, str, str, str]], also: Sequence[str]) -> str:
    """How often each of `also` was called."""
    each = {name: sum(n for key, n in found.items() if key[0] == name) for name in also}
    return ", ".join(f"{name} {n}" for name, n in each.items()) or "none was asked for"


def main() -> int:
    """Run, print the table, most frequent first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--also", default="", metavar="CALL,…", help="allowed ones to count too")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    words, also = args.command, [name for name in args.also.split(",") if name]
    if strange := set(also) - system_calls.ALLOWED.keys():
        parser.error(f"--also {','.join(strange)}: not among the calls that are allowed")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = count(start(words[1:] if words[:1] == ["--"] else words, also))
    print("| call | argument | answer behind the walls | process | times |\n|---|---|---|---|---|")
    for (name, argument, answer, caller), times in found.most_common():
        print(f"| {name} | {argument} | {answer} | {caller} | {times} |")
    print(f"of {', '.join(also) or 'the allowed'}: {counted(found, also)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
