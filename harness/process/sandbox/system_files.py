"""What of the machine every untrusted process may read: programs and libraries, by allow-list.

    /usr /lib /bin …           the distribution's, and this Python's own folders
    compilers and CUDA         wherever they are installed, /opt included
    the linker's folders       what /etc/ld.so.conf names
    /etc                       a few files that say nothing about this machine's users or services
    /sys                       the hardware

Nothing else of /etc, /opt, /run, /sys or /var, and no home.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

FOLDERS = "/usr /lib /lib64 /lib32 /libx32 /bin /sbin /nix/store /gnu/store /run/opengl-driver"
ETC = (
    "ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime timezone os-release lsb-release "
    "debian_version redhat-release nsswitch.conf host.conf protocols services mime.types "
    "locale.alias locale.conf ssl/openssl.cnf"
)
SYS = "/sys/devices /sys/bus /sys/class /sys/dev /sys/module /sys/kernel/mm"
#: Not /proc itself: its other entries hold every process's environment and command line.
PROC_FACTS = "cpuinfo meminfo stat version devices modules filesystems loadavg uptime driver sys"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@functools.cache
def readable_paths() -> tuple[Path, ...]:
    """All that is there of the list above, no path twice; looked up once."""
    names = [*FOLDERS.split(), *SYS.split(), *(f"/etc/{name}" for name in ETC.split())]
    names += [sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    names += [os.environ.get(key, "") for key in ("CUDA_HOME", "CUDA_PATH")]
    paths = [Path(name) for name in names if name]
    paths += [*Path("/etc").glob("python3*"), *_toolchains(), *_linked_folders()]
    return tuple(path for path in dict.fromkeys(paths) if path.exists())


def _toolchains() -> Iterator[Path]:
    """Where the compilers on the PATH are installed: /opt/rh/…, a toolkit, a module tree."""
    for tool, proof in (("gcc", "lib*/gcc"), ("g++", "lib*/gcc"), ("nvcc", "nvvm")):
        found = shutil.which(tool)
        if found:
            prefix = Path(found).resolve().parent.parent
            if prefix != Path("/") and next(prefix.glob(proof), None):
                yield prefix


def _linked_folders() -> Iterator[Path]:
    """Folders in which the machine's own configuration has the linker look."""
    for file in (Path("/etc/ld.so.conf"), *sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        yield from (Path(line.strip()) for line in lines if line.strip().startswith("/"))


def devices(named: tuple[Path, ...] | None = None) -> list[Path]:
    """Harmless device nodes, and the GPU's: `named`, or all there are."""
    usual = [Path("/dev", name) for name in DEVICES]
    gpus = sorted(gpu_nodes()) if named is None else list(named)
    return [path for path in (*usual, *gpus) if path.exists()]


def gpu_nodes(minor: int | None = None) -> list[Path]:
    """NVIDIA's nodes: for control, of the capabilities, and of the GPU `minor` (None: of all)."""
    nodes = [path for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    nodes += [path for folder in Path("/dev").glob("nvidia-caps*") for path in folder.glob("*")]
    others = {
        path
        for path in nodes
        if minor is not None and path.name[6:].isdigit() and path.name != f"nvidia{minor}"
    }
    return [path for path in nodes if path not in others]
