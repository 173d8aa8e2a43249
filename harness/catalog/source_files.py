"""The files of a submission: read once and with limits, hashed, and laid out again as a copy.

What is hashed is what runs. `read` keeps the bytes of every file that the hash covers; what workers
and builders see is a folder that `lay_out` made of these very bytes, with nothing else in it: no
NOTES.md, no build/, no bytecode that stands in for a source, nothing that begins with a dot. A
folder may come from a stranger, so nothing is opened that is no regular file, nothing is followed
out of the folder, and number, depth and size have an end.
"""

import contextlib
import hashlib
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TypeVar, cast

from harness.errors import SubmissionError, UsageError
from harness.process.sandbox.folders import remove_tree
from harness.process.text import SURROGATE, shown

SKIPPED_DIRS = {"__pycache__", "steps", "build", "results"}
SKIPPED = re.compile(r"\..*|.*\.py[cdo]")  # what tools leave, which no wheel would hold
SKIPPED_FILES = {"NOTES.md"}  # words about a kernel do not change it
MAX_FOLDER_BYTES = 32 << 20
MAX_FILES = 1000  # and folders
MAX_DEPTH = 12
PLAIN_NAME = re.compile(r"\w[\w.+=@,-]*")
TOO_MUCH = "keep sources only"

Refusal = TypeVar("Refusal", bound=UsageError)

#: (path inside the folder, content), in the order in which they are hashed.
Files = tuple[tuple[str, bytes], ...]


def fault(
    place: Path, said: str, hint: str, line: int = 0, error: type[UsageError] = SubmissionError
) -> UsageError:
    """`error` that says what is wrong with a file or folder, whatever signs its name has."""
    at = f"{shown(place)}:{line}" if line else shown(place)
    return error(f"{at}: {shown(said)}", shown(hint))


def unreadable(path: Path, why: Exception, error: type[Refusal]) -> Refusal:
    """The same of what the system does not let us read."""
    said = f"cannot be read ({getattr(why, 'strerror', None) or why})"
    told = fault(path, said, "check the path and its permissions", error=error)
    return cast("Refusal", told)


def read_file(
    path: Path,
    most_bytes: int,
    error: type[UsageError] = SubmissionError,
    within: Path | None = None,
    links: bool = True,
) -> bytes:
    """The content of one regular file, or (`links`) of what a link leads to; else raise `error`.

    A FIFO, a device or a file that another process holds a lease on is told of, never waited for,
    and what is none or lies elsewhere is not opened: a device could take that for an order.
    within: what was opened must lie there; a name may lead elsewhere since it was looked at.
    """
    try:
        fd = os.open(path, os.O_PATH | (0 if links else os.O_NOFOLLOW))
        try:
            told = os.fstat(fd)
            if stat.S_ISLNK(told.st_mode):
                raise fault(path, "is a link", "put the file in its place", error=error)
            if within and not _opened(fd, path).is_relative_to(within):
                raise _leads_out(path, error)
            if not stat.S_ISREG(told.st_mode):
                raise fault(path, "is no regular file", "put a file in its place", error=error)
            if told.st_size > most_bytes:
                said = f"{told.st_size} bytes, at most {most_bytes}"
                raise fault(path, said, "make it shorter", error=error)
            with open(f"/proc/self/fd/{fd}", "rb", opener=_at_once) as file:
                return file.read(told.st_size)  # 0 of what the system makes up, which may be late
        finally:
            os.close(fd)
    except (OSError, ValueError) as cause:  # ValueError: a null character in the name
        raise unreadable(path, cause, error) from None


def _at_once(path: str, flags: int) -> int:
    """For `open`: nothing is waited for."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _opened(fd: int, path: Path) -> Path:
    """Where the file behind `fd` lies."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/fd/{fd}").readlink()
    return path.resolve()  # no /proc: as the name says


def names_in(folder: Path) -> list[str]:
    """Paths of all regular files below `folder` that count, by their parts in order.

    Raises SubmissionError where something else lies there, leads out, or is too much.
    """
    found: list[str] = []
    seen = 0
    left = [PurePosixPath()]
    home = home_of(folder)
    while left:
        inside = left.pop()
        for entry in listed(folder / inside):
            path = inside / entry.name
            seen += 1
            if seen > MAX_FILES or len(path.parts) > MAX_DEPTH:  # first: no more of it is listed
                said = f"more than {MAX_FILES} files and folders, or deeper than {MAX_DEPTH}"
                raise fault(folder, said, TOO_MUCH)
            if SKIPPED.fullmatch(entry.name):
                continue
            if not PLAIN_NAME.fullmatch(entry.name):  # nvcc hands it to a shell
                said = "a name that begins with none of letters, digits and _, or has more than "
                said += "these, . - + = @ and ,"
                raise fault(folder / path, said, "rename or remove that file")
            if entry.is_dir(follow_symlinks=False):
                left += [] if entry.name in SKIPPED_DIRS else [path]
            elif entry.name not in SKIPPED_FILES and _counts(home, folder / path):
                found.append(path.as_posix())
    return sorted(found, key=lambda name: PurePosixPath(name).parts)


def read(folder: Path, names: Iterable[str], home: Path | None = None, links: bool = True) -> Files:
    """The content of the files `names` of `folder`, in that order, each read once.

    home: where it lay when it was looked at; a link may have taken its place.
    """
    files: list[tuple[str, bytes]] = []
    total = 0
    home = home or home_of(folder)
    for name in names:
        files.append((name, read_file(home / name, MAX_FOLDER_BYTES, within=home, links=links)))
        total += len(files[-1][1])
        if total > MAX_FOLDER_BYTES:
            raise fault(folder, f"more than {MAX_FOLDER_BYTES >> 20} MiB of files", TOO_MUCH)
    return tuple(files)


def digest(files: Files, described: str = "") -> str:
    """SHA-256 of names and contents, then of what is said of them elsewhere."""
    found = hashlib.sha256()
    for name, body in files:
        found.update(f"{name}\0{len(body)}\0".encode())
        found.update(body)
    found.update(described.encode())
    return found.hexdigest()


def lay_out(files: Files, target: Path) -> None:
    """Make `target` a folder of exactly `files`; what lies there already is compared, byte by byte.

    The name stands for the content, so that compilers which note paths find their work again.
    """
    if holds(target, files):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for name, body in files:
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            path.chmod(0o444)
        for here, _, _ in os.walk(fresh):
            Path(here).chmod(0o755)
        if not holds(target, files) and (target.is_symlink() or target.exists()):
            old = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
            target.rename(old / "was")
            remove_tree(old)
        with contextlib.suppress(OSError):  # another run of the same sources was first
            fresh.rename(target)
    finally:
        remove_tree(fresh)
    if not holds(target, files):
        raise fault(target, "is not what was written there", f"rm -r '{target}'")


def holds(folder: Path, files: Files) -> bool:
    """Whether `folder` consists of exactly `files`."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    wanted = dict(files)
    try:
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        folders = {parent.as_posix() for name in wanted for parent in PurePosixPath(name).parents}
        return there == (wanted.keys() | folders) - {"."} and all(
            not (folder / name).is_symlink() and read_file(folder / name, len(body)) == body
            for name, body in files
        )
    except (OSError, SubmissionError):
        return False


def home_of(folder: Path) -> Path:
    """Where `folder` really lies, in UTF-8; it may go away meanwhile."""
    try:
        home = folder.resolve()
    except (OSError, RuntimeError) as cause:
        raise unreadable(folder, cause, SubmissionError) from None
    if SURROGATE.search(str(home)):  # a unit's line could not tell it to its process
        raise fault(folder, "leads to a path that is not UTF-8", "rename the folder it leads to")
    return home


def plain_files(folder: Path, ends: tuple[str, ...]) -> list[str]:
    """Names of the regular files of `folder` that end so; what else lies there is nobody's."""
    plain = (entry.name for entry in listed(folder) if entry.is_file(follow_symlinks=False))
    return sorted(name for name in plain if name.endswith(ends) and PLAIN_NAME.fullmatch(name))


def listed(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in `folder`; SubmissionError if it is too much, or the system does not tell."""
    try:
        with os.scandir(folder) as entries:
            found = list(itertools.islice(entries, MAX_FILES + 1))
    except OSError as cause:
        raise unreadable(folder, cause, SubmissionError) from None
    if len(found) > MAX_FILES:
        raise fault(folder, f"more than {MAX_FILES} files and folders", TOO_MUCH)
    return found


def _counts(home: Path, path: Path) -> bool:
    """Whether the hash covers `path`; a link to a folder is left out, one out of it refused."""
    if os.path.islink(path):
        try:
            real = path.resolve()
        except (OSError, RuntimeError):  # a circle
            return False
        if not real.is_relative_to(home):
            raise _leads_out(path)
        return os.path.isfile(real)
    if not os.path.isfile(path):
        raise fault(path, "is no regular file", "keep files and folders only, no FIFO, no device")
    return True


def _leads_out(path: Path, error: type[UsageError] = SubmissionError) -> UsageError:
    return fault(path, "links out of its folder", "copy the file into the folder", error=error)
