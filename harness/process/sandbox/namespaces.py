"""Level 2: a process among none but its own.

    launcher ── leave: new pid, mount, ipc, net, uts, cgroup namespace; a user namespace unless root
        └─ fork ─> first (pid 1 in there) ── settle: private root, another user
                       └─ fork ─> the untrusted process (pid 2), which enters the inner walls

The first process stays. It reaps what is orphaned, so nothing of an entrant is ever a child of the
engine but this one; it ends when the second does, with its exit code, and the kernel then kills
whoever is left. Told to over its line, it stops or continues all others at once, which no fork can
outrun.
"""

import contextlib
import os
import select
import shlex
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from harness.errors import UnavailableError
from harness.process import process_tree
from harness.process.process_tree import checked, libc
from harness.process.sandbox import private_root

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
ALL_BUT_USER = NEW_MOUNTS | NEW_CGROUP | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET
FIRST_NAME = "attn-first"
STOP, GO, NEWEST = b"s", b"g", b"n"  # words to the first process; the last: which began last
#: Of a question a mark stands behind the word; an answer begins with it and tells as many bytes.
MARK_BYTES, TOLD_BYTES = 7, 8
ANSWER_S = 20.0  # at most: while all load on a busy host it waits for a core like others
BY_SIGNAL = 128  # a code above it: the second process was killed by that signal
#: No account is expected here: systemd's table of ranges calls 1879048192 to 2147483647 unused.
FIRST_USER, USERS = 0x7000_0000, 0x0FFF_FFFF
FEW_FIRST, FEW = 0xD000, 0x2000  # where only 65,536 ids are mapped, as in a rootless container


def user_of(key: str) -> int | None:
    """The user id of an entrant, from its key in hexadecimal; None where there is only our own.

    It stays the same from run to run, so that its cache does. Two keys can give the same one:
    whoever makes the workers of a run gives no two of them the same.
    """
    if os.geteuid() != 0:
        return None
    number, spans = int(key[:8], 16), ((FIRST_USER, USERS), (FEW_FIRST, FEW))
    known = (first + number % count for first, count in spans if _mapped(first, first + count))
    return next(known, None)


def _mapped(first: int, end: int) -> bool:
    """Whether this user namespace knows all ids from `first` on, below `end`."""
    lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    spans = (map(int, line.split()) for line in lines)
    return any(inside <= first and end <= inside + count for inside, _, count in spans)


def leave(uid: int | None) -> None:
    """Leave all of this process's namespaces; its next fork is the first process of the new ones.

    uid: whom it will become in there, if it is root; None makes a user namespace that holds our own
    id.
    """
    if uid is not None:
        checked("unshare", libc.unshare(ALL_BUT_USER), 1)
        return
    us, group = os.geteuid(), os.getegid()
    checked("unshare", libc.unshare(ALL_BUT_USER | NEW_USER), 1)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{us} {us} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def settle(uid: int | None, contents: private_root.Contents, line: int | None = None) -> None:
    """In the first process: make the root, become `uid`, fork. Returns in the second process only.

    line: descriptor of a socket over which the others are stopped and continued.
    """
    libc.sethostname(b"worker", 6)
    private_root.enter(contents)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    for path in contents.ro:
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            hint = f"chmod -R go+rX {shlex.quote(str(path))}, or --sandbox 1"
            raise UnavailableError(f"the worker's user may not read {path}", hint)
    if second := os.fork():
        _stay(second, line)
    process_tree.die_with_parent()  # after the change of user, which forgets it
    # Its /proc entry, which that made root's: libcuda names its threads there.
    libc.prctl(process_tree.PR_SET_DUMPABLE, 1, 0, 0, 0)


def _stay(second: int, line: int | None) -> None:
    """Reap, stop, continue; end with `second` and its code. Never returns."""
    code = 1
    try:
        process_tree.set_undumpable()
        process_tree.die_with_parent()
        process_tree.set_process_name(FIRST_NAME)
        os.closerange(0, line if line is not None else 1 << 16)
        if line is not None:
            os.closerange(line + 1, 1 << 16)
        code = _serve(second, line)
    finally:
        os._exit(code)


def _serve(second: int, line: int | None) -> int:
    """Until `second` ends: its exit code, or BY_SIGNAL and the number of what killed it."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == second:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else BY_SIGNAL - code
            if pid == 0:
                break
        ready = select.select([told] if line is None else [told, line], [], [])[0]
        if told in ready:
            os.read(told, 4096)
        if line in ready:
            if not (asked := os.read(line, 1 + MARK_BYTES)):
                line = None  # nobody stops us any more
                continue
            word, mark = asked[:1], asked[1:]
            if word == NEWEST:
                os.write(line, mark + _newest())
                continue
            everybody = -1  # but this process: all of the namespace, and no fork gets away
            with contextlib.suppress(ProcessLookupError):
                os.kill(everybody, signal.SIGSTOP if word == STOP else signal.SIGCONT)
            os.write(line, mark + bytes(TOLD_BYTES))


def ask(line: socket.socket, word: bytes) -> bool:
    """Have the first process STOP the others or let them GO; False if it does not answer."""
    return _answer(line, word) != b""


def newest(line: socket.socket) -> bytes:
    """The number of the last process or thread in there, ended or not; b"" if it is silent."""
    return _answer(line, NEWEST)


def _answer(line: socket.socket, word: bytes) -> bytes:
    mark = os.urandom(MARK_BYTES)
    with contextlib.suppress(OSError):
        line.settimeout(ANSWER_S)
        line.sendall(word + mark)
        while told := line.recv(MARK_BYTES + TOLD_BYTES):
            if told.startswith(mark):  # else it came too late, to another word
                return told[MARK_BYTES:]
    return b""


def _newest() -> bytes:
    """Of this process's namespace: the last word of loadavg (man 5 proc)."""
    word = Path("/proc/loadavg").read_text(encoding="ascii").split()[-1]
    return int(word).to_bytes(TOLD_BYTES, "little")


def refusal(uid: int | None, contents: Callable[[], private_root.Contents]) -> str:
    """Why a process cannot be walled in here, or an empty string; tries it on a child."""
    told, tell = os.pipe()
    if (child := os.fork()) == 0:
        os.close(told)
        _try(uid, contents, tell)
    os.close(tell)
    with open(told, encoding="utf-8", errors="replace") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return "" if said == "ok" else said or "the trial ended without a word"


def _try(uid: int | None, contents: Callable[[], private_root.Contents], tell: int) -> None:
    """Enter the walls in a child of this process and say 'ok', or why not. Never returns."""
    try:
        leave(uid)
        if first := os.fork():
            os.waitpid(first, 0)
            os._exit(0)
        told = os.dup2(tell, 1 << 10)  # the first process closes what lies below
        settle(uid, contents())
        os.write(told, b"ok")
    except UnavailableError as error:
        os.write(tell, error.message.encode())
    except BaseException as error:
        os.write(tell, repr(error).encode())
    finally:
        os._exit(0)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="ascii")
    except OSError as error:
        raise UnavailableError(f"{path}: {error.strerror}", "--sandbox 1 runs without") from None
