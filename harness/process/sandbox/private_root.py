"""A root folder of one's own: a tmpfs with read-only views of what is listed, and nothing else.

    /usr, /lib …, this Python, CUDA, the harness's package, the submission    as outside, read-only
    the cache                                                                 as outside, writable
    /tmp, /dev/shm, the scratch folder        one small tmpfs, which ends with the process
    /etc                                      a few files by name, and users that are made up
    /dev                                      null and its like, the devices that are named
    /proc                                     of this PID namespace; of the machine a few facts
    /sys                                      the hardware, not cgroups, not firmware

Every path is where it is outside, links included, so that caches and import paths keep their names.
What is not listed does not exist in here: it can be neither read nor listed nor asked for its size.
Needs a mount namespace of one's own (harness/process/sandbox/namespaces.py); the idea of pivoting
into a tmpfs is bubblewrap's.
"""

import ctypes
import functools
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.process.process_tree import checked, libc

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, AT_RECURSIVE = 442, 0x8000  # Linux 5.12, older than Landlock
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
OLD = "/.outside"  # where the machine's root hangs until all is taken from it
ROOM = "/.room"  # the tmpfs behind /tmp, /dev/shm and the scratch folder
SHARED = (Path("/tmp"), Path("/dev/shm"))  # what every program expects to write to
#: Opened anew by a program that prints to /dev/stderr and the like.
DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}


@dataclass(frozen=True)
class Contents:
    """What the new root holds. Folders that are not there outside are not there inside."""

    ro: tuple[Path, ...]
    rw: tuple[Path, ...]
    fresh: tuple[Path, ...]  # empty folders in the tmpfs, to be written
    devices: tuple[Path, ...]
    facts: tuple[Path, ...]  # of /proc
    room_bytes: int
    uid: int
    gid: int


def enter(contents: Contents) -> None:
    """Make the root and move into it; the old one is out of reach afterwards."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)  # nothing of ours is seen outside
    _mount("none", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
    Path("/tmp" + OLD).mkdir()
    number = PIVOT_ROOT[platform.machine()]
    checked("pivot_root", libc.syscall(number, b"/tmp", f"/tmp{OLD}".encode()), 1)
    os.chdir("/")
    os.umask(0o022)
    _make_room(contents)
    _show_all(contents)
    _users(contents.uid, contents.gid)
    _devices(contents.devices)
    Path("/proc").mkdir()
    # Without root, only who has a whole /proc in sight is given another: the old root still is.
    # hidepid: the command line of the first process holds the rules, and it is not dumpable.
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=1")
    _hide_the_machine(contents.facts)
    checked("umount", libc.umount2(OLD.encode(), MNT_DETACH), 1)
    Path(OLD).rmdir()
    _mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _hide_the_machine(facts: Sequence[Path]) -> None:
    """Of what belongs to no process leave `facts`, and nothing below /proc/sys to be written.

    In place of the rest lie devices whose mount lets none be opened, and empty folders.
    """
    for path in (*Path("/proc").iterdir(), *Path("/proc/sys").glob("*")):
        place = str(path)
        if path.name.isdigit() or path.is_symlink() or path in facts:
            continue
        if place == "/proc/sys":
            _mount(place, place, None, MS_BIND)
            _attributes(place, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC)
        elif path.is_dir():
            _mount("none", place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        else:
            _mount("/dev/null", place, None, MS_BIND)
            _attributes(place, ATTR_NODEV)


def _make_room(contents: Contents) -> None:
    """One tmpfs of limited size, seen at several places."""
    Path(ROOM).mkdir()
    size = f"mode=0755,size={contents.room_bytes},nr_inodes=200k"
    _mount("none", ROOM, "tmpfs", MS_NOSUID | MS_NODEV, size)
    for number, path in enumerate((*SHARED, *contents.fresh)):
        source = Path(ROOM, str(number))
        source.mkdir()
        source.chmod(0o1777)
        _lead_to(path.parent)
        path.mkdir(exist_ok=True)
        _mount(str(source), str(path), None, MS_BIND)
    checked("umount", libc.umount2(ROOM.encode(), MNT_DETACH), 1)
    Path(ROOM).rmdir()


def _show_all(contents: Contents) -> None:
    """Parents first, so that what is writable inside a read-only folder lies on top of it."""
    wanted = {**dict.fromkeys(contents.ro, ATTR_RDONLY), **dict.fromkeys(contents.rw, 0)}
    shown: dict[Path, int] = {}
    for path in sorted(wanted, key=lambda path: len(path.parts)):
        place, attributes = mirror(path), wanted[path]
        if place is None:
            continue
        above = next((p for p in (place, *place.parents) if p in shown), None)
        if above is None or shown[above] != attributes:
            _show(place, attributes)
            shown[place] = attributes


def _show(place: Path, attributes: int) -> None:
    """Bind one file or folder of the old root to its own place in the new one, recursively."""
    outside = f"{OLD}{place}"
    _lead_to(place.parent)
    if Path(outside).is_dir():
        place.mkdir(exist_ok=True)
    elif not place.exists():
        place.touch()
    _mount(outside, str(place), None, MS_BIND | MS_REC)
    _attributes(str(place), attributes | ATTR_NOSUID | ATTR_NODEV)


@functools.cache  # a second mount would hide what is mounted below the first
def _lead_to(folder: Path) -> None:
    """Make `folder`, which a mount is to lie in; below /tmp and /dev/shm it is one itself.

    Without root it would be the worker's to move, and the watch knows by names what it holds.
    """
    if not any(shared in folder.parents for shared in SHARED):
        folder.mkdir(parents=True, exist_ok=True)
        return
    _lead_to(folder.parent)
    folder.mkdir(exist_ok=True)
    _mount(str(folder), str(folder), None, MS_BIND | MS_REC)


def mirror(
    path: Path, root: Path = Path("/"), old: Path = Path(OLD), links: int = 40
) -> Path | None:
    """Make the way to `path` in the new root as it is in the old one, links included.

    Returns where it leads, which is not made itself, or None if there is nothing. root and old:
    where the new and the old root hang. links: how many are followed.
    """
    here = Path("/")
    for left, part in enumerate(path.parts[1:], start=2 - len(path.parts)):
        there = here.parent if part == ".." else here / part
        outside, inside = old / there.relative_to("/"), root / there.relative_to("/")
        if outside.is_symlink():
            target = outside.readlink()
            if not inside.is_symlink():
                inside.symlink_to(target)
            rest = path.parts[left:] if left else ()
            return mirror(Path(here, target, *rest), root, old, links - 1) if links else None
        if not outside.exists():
            return None
        if left and not inside.exists():
            inside.mkdir()
        here = there
    return here


def _users(uid: int, gid: int) -> None:
    """Names for the two users there are: whoever asks for the host's finds nobody."""
    Path("/etc").mkdir(exist_ok=True)
    worker = f"worker:x:{uid}:{gid}:worker:/nonexistent:/bin/false"
    for name, lines in {
        "passwd": ("root:x:0:0:root:/:/bin/false", worker),
        "group": ("root:x:0:", f"worker:x:{gid}:"),
        "hosts": ("127.0.0.1 localhost",),
    }.items():
        Path("/etc", name).write_text("\n".join(lines) + "\n", encoding="ascii")


def _devices(devices: Sequence[Path]) -> None:
    for device in devices:
        if found := mirror(device):
            found.touch()
            _mount(f"{OLD}{found}", str(found), None, MS_BIND)
            _attributes(str(found), ATTR_NOSUID | ATTR_NOEXEC)
    for name, target in DEV_LINKS.items():
        Path("/dev", name).symlink_to(target)


def _attributes(path: str, attributes: int) -> None:
    """Set flags on a mount and all below it; what is set already stays."""
    wanted = (ctypes.c_uint64 * 4)(attributes)  # mount_attr: set; clear, propagation, user: none
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    code = libc.syscall(MOUNT_SETATTR, -1, os.fsencode(path), AT_RECURSIVE, wanted, size)
    checked(f"mount_setattr {path}", code, 1)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    system, options = (text.encode() if text else None for text in (kind, data))
    what, where = os.fsencode(source), os.fsencode(target)
    code = libc.mount(what, where, system, ctypes.c_ulong(flags), options)
    checked(f"mount {source} on {target}", code, 1)
