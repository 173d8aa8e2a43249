"""Remove a folder that strangers wrote into, however deep it is and whatever its modes are.

shutil.rmtree calls itself for every level (until Python 3.13), and its paths grow with the depth: a
few thousand folders in one another would end the run that wants to remove them, and every later
one. Here a folder's folders are moved up beside it before it goes. All is done through open
folders, never through a path or a link that somebody who still runs could exchange.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

LONGEST_S = 60.0  # somebody may still be writing


def remove_tree(top: Path) -> bool:
    """Remove `top` and all below it, or the link that it is; whether it is gone. Raises nothing."""
    with contextlib.suppress(OSError), _opened(top) as fd:
        deadline, mark, moved = time.monotonic() + LONGEST_S, secrets.token_hex(8), 0
        progress = True
        while progress and time.monotonic() < deadline:
            progress = False
            for name in _emptied(fd):
                with contextlib.suppress(OSError), _opened(name, fd) as inside:
                    for below in _emptied(inside):
                        with contextlib.suppress(OSError):
                            os.rename(below, f"{mark}-{moved}", src_dir_fd=inside, dst_dir_fd=fd)
                            moved, progress = moved + 1, True
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=fd)
                    progress = True
    with contextlib.suppress(OSError):
        if top.is_symlink():
            top.unlink()
        else:
            top.rmdir()
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


def _emptied(folder: int) -> list[str]:
    """Unlink all in the open `folder` but its folders; their names."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.name, dir_fd=folder)
    return folders
