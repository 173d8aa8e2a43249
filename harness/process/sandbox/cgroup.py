"""A control group (version 2) of one entrant: the kernel counts what it takes, and bounds it.

    memory.max     what no process maps counts too: files in memory, sockets, pipes, page tables
    pids.max       holds for root as well
    cgroup.freeze  stops all of them, and no signal wakes one
    cgroup.kill    ends all of them at once

It can be had by root, and by a user to whom a subtree was delegated (systemd-run --user --scope -p
Delegate=yes). Without one the watch adds up what /proc tells, and rlimits bound the number of
processes.
"""

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

MOUNT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NEEDED = {"memory", "pids"}
KERNEL, MOST_PIDS = Path("/proc/sys/kernel"), 1 << 22  # the second: of any Linux
NAME = "attnboard-"
COUNTED = ("anon", "shmem", "kernel", "sock")  # of memory.stat: not the files that it has read
JOINED_S = 60.0  # by then its first process is in it
ROOM_BYTES = 1 << 30  # above the limit, which the watch enforces with a word: the wall behind it


@dataclass(frozen=True)
class Group:
    """One folder below /sys/fs/cgroup."""

    folder: Path

    def bytes(self) -> int:
        """Memory of all that is in it, 0 if it is gone."""
        return sum(count for word, count in self._numbers("memory.stat") if word in COUNTED)

    def ran_out(self) -> bool:
        """Whether the kernel killed in it because it had used up its own memory.

        oom_kill alone is counted of the machine's want of memory, too.
        """
        happened = {word for word, count in self._numbers("memory.events") if count}
        return {"oom", "oom_kill"} <= happened

    def kill(self) -> None:
        """Kill all that is in it."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1", encoding="ascii")

    def freeze(self, frozen: bool) -> None:
        """Stop all that is in it, or let it go on."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.freeze").write_text(str(int(frozen)), encoding="ascii")

    def remove(self, wait_s: float = 0.2) -> None:
        """Take it away, as soon as nobody is left in it; what stays is swept by the next one."""
        deadline = time.monotonic() + wait_s
        while not _removed(self.folder) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _numbers(self, file: str) -> list[tuple[str, int]]:
        with contextlib.suppress(OSError):
            lines = (self.folder / file).read_text(encoding="ascii").splitlines()
            return [(word, int(count)) for word, _, count in (one.partition(" ") for one in lines)]
        return []


def parent(mount: Path = MOUNT, own: Path = OWN) -> Path | None:
    """The nearest group above ours in which one may be made whose memory is counted, or None."""
    try:
        lines = own.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    place = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    folder = mount / place.strip("/")
    for above in (each for each in (folder, *folder.parents) if each.is_relative_to(mount)):
        with contextlib.suppress(OSError):
            handed_down = (above / "cgroup.subtree_control").read_text(encoding="ascii").split()
            writable = os.access(above, os.W_OK) and os.access(above / "cgroup.procs", os.W_OK)
            if set(handed_down) >= NEEDED and writable:
                return above
    return None


def room(mount: Path = MOUNT, own: Path = OWN) -> int:
    """How many processes and threads may begin here, by the kernel and the groups that we are in.

    Of version 1 too, which lies in a folder of its own, as version 2 does beside it.
    """
    found = [MOST_PIDS]
    for name in ("pid_max", "threads-max"):
        with contextlib.suppress(OSError, ValueError):  # not every kernel tells
            found.append(int((KERNEL / name).read_text(encoding="ascii")))
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text(encoding="ascii").splitlines():
            _, kinds, place = line.split(":", 2)
            tops = ("pids",) if "pids" in kinds.split(",") else () if kinds else (".", "unified")
            for folder in (mount / top / place.strip("/") for top in tops):
                for above in (folder, *folder.parents):
                    with contextlib.suppress(OSError, ValueError):  # none, or "max"
                        most = int((above / "pids.max").read_text(encoding="ascii"))
                        begun = int((above / "pids.current").read_text(encoding="ascii"))
                        found.append(max(0, most - begun))
    return min(found)


def make(memory_bytes: int, processes: int, above: Path | None) -> Group | None:
    """A group below `above` with these bounds; None where that is none or refuses."""
    if above is None:
        return None
    for left in above.glob(f"{NAME}*"):
        with contextlib.suppress(OSError):  # others' may be empty so far, and of another container
            gone = not Path("/proc", left.name.split("-")[1]).exists()
            if gone and time.time() - left.stat().st_mtime > JOINED_S:  # of runs that were killed
                _removed(left)
    group = Group(above / f"{NAME}{os.getpid()}-{secrets.token_hex(4)}")
    bounds = {
        "memory.max": memory_bytes + ROOM_BYTES,
        "memory.swap.max": 0,
        "memory.oom.group": 1,
        "pids.max": processes,
    }
    try:
        group.folder.mkdir()
        for file, value in bounds.items():
            if (group.folder / file).exists():  # no swap here: no file for it
                (group.folder / file).write_text(str(value), encoding="ascii")
    except OSError:
        group.remove(0)
        return None
    return group


def join(folder: Path) -> None:
    """Move this process into the group; what it starts from now on is in it too."""
    with contextlib.suppress(OSError):  # the watch counts by /proc as well
        (folder / "cgroup.procs").write_text("0", encoding="ascii")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not os.path.lexists(folder)
