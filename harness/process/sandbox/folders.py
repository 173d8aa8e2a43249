"""Folders that strangers write into: how full one is, and how it goes, however deep, of any modes.

shutil.rmtree calls itself for every level (until Python 3.13), and its paths grow with the depth: a
few thousand folders in one another would end the run that wants to remove them, and every later
one. Here a folder's folders are moved up beside it before it goes. All is done through open
folders, never through a path or a link that somebody who still runs could exchange.
"""

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

DISK_FILES = 100_000  # of one entrant, beside Limits.disk_gib
UNCOUNTED = 1 << 62  # bytes: more than any limit
LOOK_AGAIN = LOOK_AGAIN_BYTES, LOOK_AGAIN_FILES = 32 << 20, 1000  # growth of a disk worth a count
LOOK_AGAIN_S = 10.0  # and without any: a hard link takes neither an inode nor, nearly, a block
LISTED_S = 2.0  # of our time for a disk, or what is open: a path may be 2,000 folders long
LONGEST_S = 60.0  # to remove one: somebody may still be writing
T = TypeVar("T")
Still = Callable[[], contextlib.AbstractContextManager[bool | None]]  # whether it stopped somebody


def remove_tree(top: Path, within_s: float = LONGEST_S) -> bool:
    """Remove `top` and all below it, or the link that it is; whether it is gone. Raises nothing."""
    with contextlib.suppress(OSError), _opened(top) as fd:
        deadline, mark, moved = time.monotonic() + within_s, secrets.token_hex(8), 0
        progress = True
        while progress and time.monotonic() < deadline:
            progress = False
            for name in _until(deadline, _emptied(fd, deadline)):
                with contextlib.suppress(OSError), _opened(name, fd) as inside:
                    for below in _until(deadline, _emptied(inside, deadline)):
                        with contextlib.suppress(OSError):
                            os.rename(below, f"{mark}-{moved}", src_dir_fd=inside, dst_dir_fd=fd)
                            moved, progress = moved + 1, True
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=fd)
                    progress = True
    with contextlib.suppress(OSError):
        (top.unlink if top.is_symlink() else top.rmdir)()
    return not os.path.lexists(top)


@contextlib.contextmanager
def _opened(name: str | Path, folder: int | None = None) -> Iterator[int]:
    """A descriptor of the folder `name` (in `folder`), made readable; never of a link."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        itself = f"/proc/self/fd/{found}"
        with contextlib.suppress(OSError):
            os.chmod(itself, 0o700)  # noqa: PTH101 - this very folder
        fd = os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(found)


def _until(deadline: float, these: Iterable[T]) -> Iterator[T]:
    return itertools.takewhile(lambda _: time.monotonic() < deadline, these)


def _emptied(folder: int, deadline: float) -> list[str]:
    """Unlink all in the open `folder` but its folders, until then; their names."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in _until(deadline, entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
    return folders


def files_below(tops: Iterable[Path], suffix: str) -> Iterator[os.DirEntry[str]]:
    """All below `tops` that are called so, however deep: before Python 3.12 rglob recurses."""
    left = [str(path) for path in tops if path.exists()]  # raises where its name is too long
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as inside:
            for one in inside:
                if one.is_dir(follow_symlinks=False):
                    left.append(one.path)
                if one.name.endswith(suffix):
                    yield one


def plain(path: str, flags: int) -> int:
    """For `open`, where strangers' files lie: no link is followed, and nothing is waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)


def is_own(path: Path, top: Path) -> bool:
    """Whether no link lies at `path`, nor on the way there from `top`, which may be one itself."""
    with contextlib.suppress(OSError):  # what was a link is none when it is read
        return Path(os.path.realpath(path)) == Path(os.path.realpath(top)) / path.relative_to(top)
    return False


@dataclass
class Disk:
    """One folder that an entrant writes to, counted again when its disk has filled up, or later."""

    folder: Path
    bytes: int = 0
    files: int = 0
    _free: tuple[int, ...] = (1 << 62, 1 << 62)
    _counted_s: float = 0.0  # when that was
    _still: tuple[int, ...] = (0, 0)  # free when its owner was stopped, or later

    def look(self, most_bytes: int, most_files: int, still: Still = contextlib.nullcontext) -> None:
        """Bring `bytes` and `files` up to date, or past a bound; `still` stops its owner."""
        try:
            found = os.statvfs(self.folder)
        except OSError:
            return
        free = (found.f_bfree * found.f_frsize, found.f_ffree)
        now_s, self._still = time.monotonic(), tuple(map(max, self._still, free))
        grown = any(a - b >= by for a, b, by in zip(self._free, free, LOOK_AGAIN, strict=True))
        # Stopped, none moves what is to be counted, and calls that wait let go of nameless files.
        share = (max(LOOK_AGAIN[0], most_bytes // 4), max(LOOK_AGAIN[1], most_files // 4))
        filled = any(a - b >= by for a, b, by in zip(self._still, free, share, strict=True))
        if grown or filled or now_s - self._counted_s > LOOK_AGAIN_S:
            self._counted_s = now_s
            with still() if filled else contextlib.nullcontext() as stopped:
                self.bytes, self.files, whole = counted(self.folder, most_bytes, most_files)
            self._still = free if stopped else self._still
            # Again at the next look if it moved: its owner is stopped in the turns of others.
            self._free = free if whole else (1 << 62, 1 << 62)
        # What was free since the last count: who fills it, lets go and fills it again is counted.
        self._free = tuple(map(max, self._free, free))


def counted(folder: Path, most_bytes: int, most_files: int) -> tuple[int, int, bool]:
    """(bytes on disk, entries) below `folder`, and whether each folder was where it was listed.

    Stops when one is above its bound. A folder that cannot be listed, or lies deeper than a path
    can name, or takes too much of our time, is UNCOUNTED bytes: no compiler makes one.
    """
    size, count, whole = 0, 0, True
    with contextlib.suppress(OSError):  # names that were in it keep its blocks
        size = folder.stat().st_blocks * 512
    # A path is put together when its turn has come: 95,000 long ones took 1.6 GiB of the engine.
    queue, begun_s = [os.path.split(os.path.realpath(folder))], time.thread_time()
    while queue and size <= most_bytes and count <= most_files:
        if time.thread_time() - begun_s > LISTED_S:
            return UNCOUNTED, count, True
        path = os.path.join(*queue.pop())  # noqa: PTH118 - a string will do
        try:
            with _in_place(path) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    count += 1
                    with contextlib.suppress(OSError):  # it has just gone
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        queue.append((path, entry.name))
        except (FileNotFoundError, NotADirectoryError):
            whole = False
        except OSError:
            return UNCOUNTED, count, True
    return size, count, whole


@contextlib.contextmanager
def _in_place(path: str) -> Iterator[int]:
    """A descriptor of this very folder: an exchanged link on the way led to others, of the host."""
    fd = plain(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != path:  # noqa: PTH115 - a string will do
            raise FileNotFoundError
        yield fd
    finally:
        os.close(fd)
