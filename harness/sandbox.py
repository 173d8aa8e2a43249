"""Level 1: what an untrusted process may touch, decided before it starts, without root.

    python -m harness.sandbox --rw SCRATCH --ro SUBMISSION ... -- COMMAND ...

Landlock (files, TCP, signals, abstract sockets) + seccomp (other processes, sockets, mounts) +
no_new_privs + rlimits. Landlock binds the calling thread and its children only, hence a call while there
is one thread: in a fork of harness/worker/nursery.py, or here before an exec. As root it still holds:
Landlock asks no uid.

Level 0 starts the command bare. Level 2 wraps level 1 in bubblewrap. Level 3 is a container, see
containers/. A level that cannot be had raises UnavailableError; it is never silently lowered.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource
import shutil
import signal
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import seccomp
from harness.errors import UnavailableError, UsageError

LEVELS = {0: "none", 1: "landlock+seccomp", 2: "bubblewrap", 3: "container"}
CONTAINER_MARK = "ATTNBOARD_CONTAINER"  # set by containers/Dockerfile

# ---------------------------------------------------------------- the kernel's numbers

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 23, 24, 47, 4
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
REFER = 1 << 13
ALL_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # a rule on a file takes these
READ = EXECUTE | READ_FILE | READ_DIR
#: Not /proc itself: its other entries hold every process's environment and command line.
PROC_FACTS = "cpuinfo meminfo stat version devices modules filesystems loadavg uptime driver sys"
ETC_SECRETS = "shadow gshadow sudoers ssh kubernetes krb5.keytab"
NET_TCP = 0b11  # bind, connect
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Rules:
    """What one untrusted process may touch beside the system's own read-only folders."""

    rw: tuple[Path, ...] = ()
    ro: tuple[Path, ...] = ()
    use: tuple[Path, ...] = ()  # files in here are read and written, none is made
    file_bytes: int = 2 << 30  # the largest file it may write
    processes: int = 4096  # of its user; has no force as root
    chdir: Path | None = None  # after the walls are up


def command(level: int, rules: Rules, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` at `level`; raise UnavailableError if it cannot."""
    require(level)
    if level == 0:
        return list(argv)
    flags = [f"--rw={path}" for path in rules.rw] + [f"--ro={path}" for path in rules.ro]
    flags += [f"--use={path}" for path in rules.use]
    flags += [f"--chdir={rules.chdir}"] if rules.chdir else []
    flags += [f"--file-bytes={rules.file_bytes}", f"--processes={rules.processes}"]
    # -s: $HOME belongs to the untrusted side, and Python would run what lies in its user site.
    inner = [sys.executable, "-s", "-m", "harness.sandbox", *flags, "--", *argv]
    return [*_bubblewrap(rules), *inner] if level == 2 else inner


def require(level: int) -> None:
    """Raise UnavailableError, saying why, unless `level` can be had on this machine."""
    if level not in LEVELS:
        raise UsageError(f"no sandbox level {level}", f"one of {', '.join(map(str, LEVELS))}")
    reason = ""
    if level >= 1:
        if platform.system() != "Linux" or platform.machine() not in seccomp.ARCHES:
            reason = f"Landlock and seccomp need Linux on {' or '.join(seccomp.ARCHES)}"
        elif landlock_abi() < 1:
            reason = "this kernel has no Landlock (needs Linux 5.13 with lsm=landlock)"
    if not reason and level == 2 and not shutil.which("bwrap"):
        reason = "bubblewrap is not installed (apt-get install bubblewrap)"
    if not reason and level == 3 and not os.environ.get(CONTAINER_MARK):
        reason = "not inside the container of containers/Dockerfile"
    if reason:
        raise UnavailableError(
            f"sandbox level {level} cannot be had: {reason}", "--sandbox 0 runs without"
        )


def usual_level() -> int:
    """1 where it can be had, else 0; the record says which."""
    try:
        require(1)
    except UnavailableError:
        return 0
    return 1


def landlock_abi() -> int:
    """Version of Landlock in this kernel, 0 where there is none."""
    return max(0, int(_libc.syscall(SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


# ---------------------------------------------------------------- Landlock


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


def _checked(what: str, value: int) -> int:
    if value < 0:
        code = ctypes.get_errno()
        raise UnavailableError(f"{what}: {os.strerror(code)}", "--sandbox 0 runs without")
    return value


def restrict_files(rules: Rules) -> None:
    """Deny this process and its children all files but the ones of `rules` and the system's."""
    abi = landlock_abi()
    handled = ALL_FILE_RIGHTS.get(abi, (1 << 16) - 1)
    ruleset = _Ruleset(handled, NET_TCP if abi >= 4 else 0, 0)
    if abi >= 6:
        ruleset.scoped = SCOPE_SIGNAL | SCOPE_ABSTRACT_UNIX  # CUDA IPC works without
    size = ctypes.c_size_t(8 if abi < 4 else 16 if abi < 6 else 24)
    fd = _checked(
        "landlock", int(_libc.syscall(SYS_LANDLOCK_CREATE, ctypes.byref(ruleset), size, 0))
    )
    for path, rights in _grants(rules, handled):
        _allow(fd, path, rights & handled)
    _checked("landlock", int(_libc.syscall(SYS_LANDLOCK_RESTRICT, fd, 0)))
    os.close(fd)


def _grants(rules: Rules, everything: int) -> Iterable[tuple[Path, int]]:
    """(path, rights): the system's folders to read, devices and its own /proc entry to use."""
    for folder in _system_folders():
        yield folder, READ
    for path in rules.ro:
        yield path, READ
    for path in rules.rw:
        yield path, everything & ~IOCTL_DEV
    for path in rules.use:
        yield path, READ_FILE | READ_DIR | WRITE_FILE
    devices = [Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom", "tty")]
    devices += Path("/dev").glob("nvidia*")
    for device in devices:
        yield device, READ_FILE | READ_DIR | WRITE_FILE | IOCTL_DEV
    # libcuda names its threads through /proc/self/task/*/comm; other entries stay read-only.
    yield Path(f"/proc/{os.getpid()}"), READ | WRITE_FILE | TRUNCATE


def _system_folders() -> list[Path]:
    """Read-only for everybody: libraries, compilers, this Python, facts about the machine."""
    names = [
        "/usr",
        "/lib",
        "/lib64",
        "/lib32",
        "/bin",
        "/sbin",
        "/opt",
        "/sys",
        "/run/nvidia-persistenced",
    ]
    names += [sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    names += [os.environ.get(key, "") for key in ("CUDA_HOME", "CUDA_PATH")]
    secret = tuple(ETC_SECRETS.split())
    names += [str(path) for path in Path("/etc").iterdir() if not path.name.startswith(secret)]
    names += [f"/proc/{name}" for name in PROC_FACTS.split()]
    return [Path(name) for name in dict.fromkeys(names) if name]


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    if not path.is_dir():
        rights &= FILE_ONLY
    rule = _PathRule(rights, fd)
    _checked(
        f"landlock rule for {path}",
        int(_libc.syscall(SYS_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0)),
    )
    if not str(path).startswith("/proc/"):  # a /proc entry is bound to its inode: keep that alive
        os.close(fd)
    else:
        os.set_inheritable(fd, True)


# ---------------------------------------------------------------- the launcher


def drop_capabilities() -> None:
    """Make root an ordinary user: nothing to gain at exec, nothing held, nothing inherited.

    Without this, root may read another process's environment whatever Landlock says (CAP_PERFMON).
    """
    number = 0
    while _libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1:
        if _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break  # not root: there is nothing in the bounding set that exec could hand out
        number += 1
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    _checked("capset", int(_libc.capset(header, (ctypes.c_uint32 * 6)())))


def enter(rules: Rules) -> None:
    """Restrict this process for good: limits first, then files, then calls."""
    _checked("prctl", int(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (rules.file_bytes, rules.file_bytes))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = rules.processes if hard == resource.RLIM_INFINITY else min(hard, rules.processes)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    drop_capabilities()
    restrict_files(rules)
    # Landlock scopes signals from ABI 6 on; before that a process may signal itself only.
    seccomp.load(signals_to=os.getpid() if landlock_abi() < 6 else None)


def _bubblewrap(rules: Rules) -> list[str]:
    """Own mounts, network and IPC names; the same PID namespace, which CUDA IPC needs."""
    line = ["bwrap", "--die-with-parent", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    line += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for device in sorted(map(str, Path("/dev").glob("nvidia*"))):
        line += ["--dev-bind", device, device]
    package = Path(__file__).resolve().parent
    for folder in [*_system_folders(), package, *rules.ro]:
        if str(folder) != "/proc" and folder.exists():
            line += ["--ro-bind", str(folder), str(folder)]
    for folder in (*rules.rw, *rules.use):
        line += ["--bind", str(folder), str(folder)]
    return [*line, "--chdir", str(package.parent)]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, restrict, exec; returns only if there was nothing to start."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.sandbox", description="Run a command at level 1."
    )
    parser.add_argument("--rw", type=Path, action="append", default=[], help="may be written")
    parser.add_argument("--ro", type=Path, action="append", default=[], help="may be read")
    parser.add_argument("--use", type=Path, action="append", default=[], help="files to use")
    parser.add_argument("--chdir", type=Path, help="where the command starts")
    parser.add_argument("--file-bytes", type=int, default=Rules.file_bytes)
    parser.add_argument("--processes", type=int, default=Rules.processes)
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        parser.error("nothing to run; end with: -- COMMAND")
    if args.die_with_parent:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    rules = Rules(
        rw=tuple(args.rw),
        ro=tuple(args.ro),
        use=tuple(args.use),
        file_bytes=args.file_bytes,
        processes=args.processes,
    )
    try:
        require(1)
        enter(rules)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.chdir:
        os.chdir(args.chdir)
    return os.execvp(words[0], words)


if __name__ == "__main__":
    sys.exit(main())
