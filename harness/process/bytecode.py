"""Bytecode of what judge and fork server import, where the installation of torch holds none.

pip compiles what it installs. uv and many images do not, and where nobody may write beside the
sources Python compiles torch's thousand files at every start again: 2 to 3 s of 4, measured on one
H200's host (docs/write-a-cuda-kernel.md). Then these two processes keep a cache of their own, and
so does the engine where Python was told to write none (PYTHONDONTWRITEBYTECODE, as many images do).
No worker reads it or writes to it; Python itself compares it with each source's time and size.
"""

import importlib.util
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path.home() / ".cache" / "attnboard" / "bytecode"


def compiled(package: str = "torch") -> bool:
    """Whether `package` has bytecode beside its source, or is not there at all."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return True
    source = Path(found.origin)
    kept = source.with_name("__pycache__") / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    return kept.is_file()


def with_cache(
    env: Mapping[str, str], package: str = "torch", folder: Path = FOLDER
) -> dict[str, str]:
    """`env` of a trusted process that imports `package`: bytecode goes to `folder` or nowhere."""
    if compiled(package) or not _ours(folder):
        return {**env, "PYTHONDONTWRITEBYTECODE": "1"}
    return {**env, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}


def use_cache(package: str = "harness", folder: Path = FOLDER) -> None:
    """The same for this process, if it may write no bytecode and `package` has none."""
    if sys.dont_write_bytecode and not compiled(package) and _ours(folder):
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(folder)


def _ours(folder: Path) -> bool:
    """Whether nobody else can write to `folder`, which is made if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return private and stat.S_ISDIR(found.st_mode)
