"""A scratch folder in shared memory, the lock of a GPU, files that appear whole or not at all."""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from harness.process.project import HOME
from harness.process.sandbox.folders import remove_tree

SCRATCH_PREFIX = "attnboard-run-"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder in memory, gone afterwards.

    It is locked while its run lives: what a killed run left behind is found unlocked and removed.
    """
    base = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    for folder in base.glob(f"{SCRATCH_PREFIX}*"):
        with locked(folder / "lock") as free:
            if free:
                remove_tree(folder)
    fresh = Path(tempfile.mkdtemp(prefix="attnboard-new-", dir=base))
    with locked(fresh / "lock"):
        folder = fresh.rename(base / f"{SCRATCH_PREFIX}{secrets.token_hex(8)}")  # locked when seen
        try:
            yield folder
        finally:
            remove_tree(folder)


def house(scratch: Path) -> Path:
    """A folder from which children import the package and can see nothing else of the checkout."""
    folder = scratch / "house"
    if not folder.exists():
        folder.mkdir()
        folder.chmod(0o755)  # the workers may be other users
        (folder / "harness").symlink_to(HOME / "harness")
    return folder


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once it is whole: no link that lies there is followed.

    Raises OSError where it cannot; what lay there stays then.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            os.fchmod(handle, 0o644)  # by its name it could be a link to another's by now
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


@contextlib.contextmanager
def locked(
    path: Path, kind: int = os.O_RDWR | os.O_CREAT, how: int = fcntl.LOCK_EX
) -> Iterator[bool | None]:
    """Hold a lock on `path`; false where others keep us from it, None where it stays shut."""
    with contextlib.ExitStack() as held:
        free: bool | None = True
        try:
            if path.parent.lstat().st_uid != os.geteuid():
                raise PermissionError  # anybody may make such a folder, and what lies in it a link
            held.callback(os.close, fd := os.open(path, kind | os.O_CLOEXEC, 0o600))
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except OSError as cause:
            free = False if isinstance(cause, BlockingIOError) else None
        yield free


@contextlib.contextmanager
def gpu_lock(node: Path, note: Callable[[str], None]) -> Iterator[None]:
    """One run at a time on one GPU; a second one waits and says so.

    Locked is the device node `node`, which nobody makes or moves: no path of others is opened, and
    who may not use the GPU cannot hold it. Where there is none, nobody is waited for.
    """
    with contextlib.ExitStack() as held:
        if node.exists():
            file = held.enter_context(node.open("rb", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"another run holds {node}; waiting for it to end")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
