"""What an entrant's processes take: CPU time, memory of the host, disk. Cheap first."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

DISK_FILES = 100_000  # of one entrant, beside Limits.disk_gib
LOOK_AGAIN_BYTES, LOOK_AGAIN_FILES = 32 << 20, 1000  # growth of a disk that is worth a count


def cpu_ns(pids: Iterable[int]) -> dict[int, int]:
    """Pid → CPU time of all its threads so far, those that ended included; who is gone is left out."""
    found = {}
    for pid in pids:
        clock = (~pid << 3) | 2  # CPUCLOCK_SCHED of a process: man 3 clock_getcpuclockid
        with contextlib.suppress(OSError):
            found[pid] = time.clock_gettime_ns(clock)
    return found


def resident_bytes(pid: int) -> int:
    """Host memory of one process, what it shares with others included; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def fair_bytes(pid: int) -> int:
    """Its memory with its part of what it shares (PSS), in some milliseconds; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def host_bytes(pids: Iterable[int], limit: int) -> int:
    """Memory of `pids` and of the files in their tmpfs; exact only if it may be above `limit`.

    A fork shares its parent's pages, so the plain sum is a bound and the fair one the truth.
    """
    everybody = list(pids)
    files = room_bytes(everybody)
    bound = sum(map(resident_bytes, everybody)) + files
    if bound <= limit:
        return bound
    return sum(fair_bytes(pid) or resident_bytes(pid) for pid in everybody) + files


def room_bytes(pids: Iterable[int]) -> int:
    """What lies in the tmpfs of a private root; 0 where the processes see the machine's own."""
    ours = _mounts("self")
    for pid in pids:
        theirs = _mounts(str(pid))
        if theirs and theirs != ours:
            try:
                found = os.statvfs(f"/proc/{pid}/root/tmp")
            except OSError:
                continue
            return (found.f_blocks - found.f_bfree) * found.f_frsize
    return 0


def _mounts(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


@dataclass
class Disk:
    """One folder that an entrant writes to, counted again when its disk has filled up."""

    folder: Path
    bytes: int = 0
    files: int = 0
    _free: tuple[int, int] = field(default=(1 << 62, 1 << 62))

    def look(self, most_bytes: int, most_files: int) -> None:
        """Bring `bytes` and `files` up to date, or past one of the bounds."""
        try:
            found = os.statvfs(self.folder)
        except OSError:
            return
        free = (found.f_bfree * found.f_frsize, found.f_ffree)
        grown = self._free[0] - free[0] >= LOOK_AGAIN_BYTES
        if grown or self._free[1] - free[1] >= LOOK_AGAIN_FILES:
            self._free = free
            self.bytes, self.files = folder_size(self.folder, most_bytes, most_files)


def folder_size(folder: Path, most_bytes: int, most_files: int) -> tuple[int, int]:
    """(bytes on disk, entries) below `folder`; stops counting when one is above its bound."""
    size = count = 0
    queue = [str(folder)]
    while queue and size <= most_bytes and count <= most_files:
        with contextlib.suppress(OSError), os.scandir(queue.pop()) as entries:  # it may just go
            for entry in entries:
                count += 1
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
    return size, count
