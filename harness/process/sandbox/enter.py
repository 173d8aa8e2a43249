"""What an untrusted process may touch, decided before it starts.

    python -m harness.process.sandbox.enter RULES COMMAND ...    as `command` writes it

    0  nothing is refused
    1  Landlock (files, TCP, signals, abstract sockets) + seccomp + no capabilities + limits
    2  namespaces and a root folder of its own, another user where we are root; level 1 inside
    3  level 1 inside a container, see containers/

Landlock and namespaces bind the calling thread and its children only, hence a call while there is
one thread: in a fork of harness/worker/forkserver.py, or here before an exec. A level that cannot
be had raises UnavailableError; `lacking` says why, and what is usual here is `usual_level()`.
"""

import contextlib
import ctypes
import functools
import json
import os
import platform
import resource
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import UnavailableError, UsageError
from harness.process import process_tree
from harness.process.process_tree import checked, libc
from harness.process.project import HOME
from harness.process.sandbox import cgroup, landlock, namespaces, private_root, readable, seccomp
from harness.process.sandbox.usage import FIRST_TO_END

LEVELS = {0: "none", 1: "landlock+seccomp", 2: "namespaces", 3: "container"}
CONTAINER_MARK = "ATTNBOARD_CONTAINER"  # set by containers/Dockerfile
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 23, 24, 47, 4
PR_SET_NO_NEW_PRIVS = 38
ROOM_BYTES = 2 << 30
FACTS = tuple(Path("/proc", name) for name in readable.PROC_FACTS.split())
#: Of root, to start, count, stop and end who has become another user, and to remove its files.
RIGHTS = {0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 5: "KILL", 6: "SETGID", 7: "SETUID"}
RIGHTS |= {8: "SETPCAP", 19: "SYS_PTRACE"}
#: With less an honest worker ends: torch and OpenBLAS start a thread for each core.
FEWEST_PROCESSES = 32 + 2 * (os.cpu_count() or 1)


@dataclass(frozen=True)
class Rules:
    """What one untrusted process may touch beside the system's own read-only folders."""

    level: int = 1
    rw: tuple[Path, ...] = ()
    ro: tuple[Path, ...] = ()
    fresh: tuple[Path, ...] = ()  # like rw; at level 2 in a tmpfs, and empty at each start
    chdir: Path | None = None  # after the walls are up
    file_bytes: int = 2 << 30  # the largest file it may write
    processes: int = 2048  # with their threads, of its user; see `most_processes`
    open_files: int = 4096  # of each of its processes, and on their way through sockets of its user
    cgroup: Path | None = None  # the group that it joins first
    # What follows is of level 2.
    uid: int | None = None  # whom it becomes where we are root
    devices: tuple[Path, ...] | None = None  # of the GPU; None: all there are
    room_bytes: int = ROOM_BYTES  # of all that it keeps in /tmp, /dev/shm and `fresh`


def to_plain(rules: Rules) -> dict[str, Any]:
    """`rules` as what JSON can carry: a path is a text."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(rules), default=str))
    return plain


def from_plain(plain: dict[str, Any]) -> Rules:
    """What `to_plain` made."""
    told = dict(plain)
    for name in ("rw", "ro", "fresh", "devices"):
        told[name] = None if told[name] is None else tuple(map(Path, told[name]))
    for name in ("chdir", "cgroup"):
        told[name] = None if told[name] is None else Path(told[name])
    return Rules(**told)


def command(rules: Rules, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` behind `rules`; raises UnavailableError if it cannot."""
    require(rules.level)
    if rules.level == 0:
        return list(argv)
    told = json.dumps(to_plain(rules))
    # -s: $HOME belongs to the untrusted side, and Python would run what lies in its user site.
    return [sys.executable, "-s", "-m", "harness.process.sandbox.enter", told, *argv]


def require(level: int) -> None:
    """Raise UnavailableError, saying why, unless `level` can be had on this machine."""
    if level not in LEVELS:
        raise UsageError(f"no sandbox level {level}", f"one of {', '.join(map(str, LEVELS))}")
    if why := lacking(level):
        hint = f"leave it out, which means --sandbox {usual_level()} here"
        raise UnavailableError(f"sandbox level {level} cannot be had: {why}", hint)


def lacking(level: int) -> str:
    """What keeps `level` from being had on this machine, or an empty string."""
    if level == 0:
        return ""
    if platform.system() != "Linux" or platform.machine() not in seccomp.ARCHES:
        return f"Landlock and seccomp need Linux on {' or '.join(seccomp.ARCHES)}"
    if landlock.abi() < 1:
        return "this kernel has no Landlock (needs Linux 5.13 with lsm=landlock)"
    if process_tree.hides_processes():  # who could neither be stopped nor counted
        how = "be root, sudo mount -o remount,hidepid=0 /proc, or no proc-opts of the container"
        return f"/proc hides processes from us (hidepid): {how}"
    if level == 2 and os.geteuid() == 0 and (rights := rights_lacking()):
        return f"root has no rights over its workers: add {', '.join(rights)}"
    if level == 2:
        return no_namespaces()
    if level == 3 and not os.environ.get(CONTAINER_MARK):
        return "not inside the container of containers/Dockerfile"
    return ""


def rights_lacking() -> list[str]:
    """Which of RIGHTS this process has not, as they are called."""
    told = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    held = int(told.partition("CapEff:")[2].split()[0], 16)
    return [f"CAP_{name}" for bit, name in RIGHTS.items() if not held >> bit & 1]


@functools.cache
def no_namespaces() -> str:
    """Why level 2 cannot be had, tried on a child that goes all the way; empty if it can."""
    uid = namespaces.user_of("0")
    package = HOME / "harness"
    return namespaces.refusal(uid, lambda: contents(Rules(level=2, uid=uid, ro=(package,))))


def usual_level() -> int:
    """The level of a run for which none was asked: the strictest that needs no container."""
    return next((level for level in (2, 1) if not lacking(level)), 0)


def grants(rules: Rules) -> Iterable[tuple[Path, int]]:
    """(path, Landlock's rights): system files to read, devices and its own /proc entry to use."""
    walled = rules.level == 2  # nothing is in sight but what may be read
    shown = [Path("/")] if walled else [*readable.readable_paths(), *FACTS]
    for path in (*shown, *rules.ro):
        # Links to /sys/devices; to read a file beside them may be an order, as zram-control's is.
        yield path, landlock.READ_DIR if path == Path("/sys/class") else landlock.READ
    for path in (*rules.rw, *rules.fresh, *(private_root.SHARED if walled else ())):
        yield path, landlock.OWN
    for device in readable.devices(rules.devices):
        yield device, landlock.DEVICE
    own = Path(f"/proc/{os.getpid()}")
    yield own, landlock.READ
    # libcuda names its threads through their comm, and ends where it may not; beside them its
    # autogroup is a priority.
    yield own / "task", landlock.WRITE_FILE | landlock.TRUNCATE


def contents(rules: Rules) -> private_root.Contents:
    """What the root folder of level 2 holds."""
    return private_root.Contents(
        ro=(*readable.readable_paths(), *rules.ro),
        rw=rules.rw,
        fresh=rules.fresh,
        devices=tuple(readable.devices(rules.devices)),
        facts=FACTS,
        room_bytes=rules.room_bytes,
        uid=os.geteuid() if rules.uid is None else rules.uid,
        gid=os.getegid() if rules.uid is None else rules.uid,
    )


def bound_capabilities() -> None:
    """Nothing is gained at exec; asks for CAP_SETPCAP, which goes with root's user."""
    number = 0
    while libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0:  # 0: a container's are not all there
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1


def drop_capabilities() -> None:
    """Make root an ordinary user: nothing held, nothing inherited.

    Without this, root may read another process's environment whatever Landlock says (CAP_PERFMON).
    """
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    checked("capset", libc.capset(header, (ctypes.c_uint32 * 6)()), 0)


def leave(rules: Rules) -> None:
    """The first step, in the process that forks the walled one: its group, its namespaces."""
    if rules.level:
        end_first()
    if rules.cgroup:
        cgroup.join(rules.cgroup)
    if rules.level == 2:
        namespaces.leave(rules.uid)


def enter(rules: Rules, line: int | None = None) -> None:
    """Restrict this process for good: its root first, then limits, files, calls.

    At level 2 it must be the first process of its namespaces (`leave`, then a fork), and what
    returns is a fork of it. line: the descriptor on which that first process is told to stop the
    others.
    """
    bound_capabilities()
    if rules.level == 2:
        namespaces.settle(rules.uid, contents(rules), line)
    else:  # nobody stands above it who would: what it starts stays below it, counted and stopped
        process_tree.adopt_orphans()
    checked("prctl", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (rules.file_bytes, rules.file_bytes))
    # Among others of its user it could start none, were it held to a share.
    share = Rules.processes if rules.uid is None else rules.processes
    kinds = {resource.RLIMIT_NPROC: share, resource.RLIMIT_NOFILE: rules.open_files}
    kinds |= dict.fromkeys((resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO), 0)
    kinds |= {resource.RLIMIT_CORE: 1}  # at 0 the host's program is piped a dump all the same
    for kind, asked in (kinds | {resource.RLIMIT_SIGPENDING: 1024}).items():  # of its user
        most = _with_room(kind, asked)
        resource.setrlimit(kind, (most, most))
    drop_capabilities()
    landlock.restrict(grants(rules))
    held = {"cuts": landlock.CUTS_FROM, "signals": landlock.SCOPES_FROM}
    seccomp.load(rules.level == 2, *(w for w, abi in held.items() if landlock.abi() >= abi))


def share_of_processes(strangers: int) -> int:
    """`Rules.processes` of each of so many. The watch ends who has half of it.

    A third of what the machine or the container has room for stays for the house, and one of them
    reaches its whole share before the watch looks.
    """
    each = cgroup.room() * 2 // 3 // (strangers + 1)
    return most_processes(min(Rules.processes, 2 * max(FEWEST_PROCESSES, each)))


def most_processes(wanted: int) -> int:
    """Up to how many processes of its user, threads included, one that is walled in may start more.

    Where it is of the same user as the judge, that one may still start some. No kernel holds root
    to it: a control group does.
    """
    return _with_room(resource.RLIMIT_NPROC, wanted)


def _with_room(kind: int, wanted: int) -> int:
    """`wanted`, or less: what the kernel counts by user is never all used up behind walls."""
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard * 3 // 4)


def allow_more_files() -> None:
    """Let this process have as many open files as it may: what it sends is counted by user too."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def end_first(pid: int | str = "self") -> None:
    """Have the kernel choose this process before the judge or the engine when memory runs out.

    So will what it starts. Who had CAP_SYS_RESOURCE has set a bound by it; others may undo it, for
    which the watch ends them.
    """
    with contextlib.suppress(OSError):  # a /proc that cannot be written
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(FIRST_TO_END), encoding="ascii")


def main() -> int:
    """Read what `command` wrote, restrict, exec; returns where it cannot, or from the launcher."""
    told, *words = sys.argv[1:]
    rules = from_plain(json.loads(told))
    try:
        leave(rules)
        if rules.level == 2 and (first := os.fork()):  # waits, and holds nothing handed down
            process_tree.die_with_parent()
            os.closerange(3, 1 << 16)
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
            return code if code >= 0 else namespaces.BY_SIGNAL - code
        enter(rules)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if rules.chdir:
        os.chdir(rules.chdir)
    return os.execvp(words[0], words)


if __name__ == "__main__":
    sys.exit(main())
