"""Landlock: which files a process and its children may touch, asked of the kernel without root.

It binds the calling thread and what it starts, for good. As root it still holds: it asks no uid.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from harness.process.process_tree import checked, libc

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls, the same on all machines
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
EVERYTHING = (1 << 16) - 1
ALL_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # a rule on a file takes these
READ = EXECUTE | READ_FILE | READ_DIR
OWN = EVERYTHING & ~IOCTL_DEV  # of a folder that is the process's own
USE = READ_FILE | READ_DIR | WRITE_FILE  # what is there, and nothing new
DEVICE = USE | IOCTL_DEV
NET_TCP = 0b11  # bind, connect
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1, 2  # CUDA IPC works without
#: ABI that knows truncation, TCP, that scopes signals and abstract sockets, that can be silent.
CUTS_FROM, NET_FROM, SCOPES_FROM, LOGS_FROM = 3, 4, 6, 7
LOG_NOTHING = 1 | 4  # of what is refused to us or in a ruleset within
PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH


def abi() -> int:
    """Version of Landlock in this kernel, 0 where there is none."""
    return max(0, int(libc.syscall(CREATE, None, ctypes.c_size_t(0), 1)))


def restrict(grants: Iterable[tuple[Path, int]]) -> None:
    """Deny this process and its children all files but `grants`: (path, rights), with all below."""
    version = abi()
    handled = ALL_FILE_RIGHTS.get(version, EVERYTHING)
    ruleset = [handled]  # landlock_ruleset_attr, as far as this kernel knows it
    ruleset += [NET_TCP] if version >= NET_FROM else []
    ruleset += [SCOPE_SIGNAL | SCOPE_ABSTRACT_UNIX] if version >= SCOPES_FROM else []
    told = struct.pack(f"={len(ruleset)}Q", *ruleset)
    fd = checked("landlock", libc.syscall(CREATE, told, ctypes.c_size_t(len(told)), 0), 0)
    for path, rights in grants:
        _allow(fd, path, rights & handled)
    flags = LOG_NOTHING if version >= LOGS_FROM else 0  # 100,000 refusals a second fill a log
    checked("landlock", libc.syscall(RESTRICT, fd, flags), 0)
    os.close(fd)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    if not path.is_dir():
        rights &= FILE_ONLY
    rule = struct.pack("=Qi", rights, fd)  # landlock_path_beneath_attr, which has no padding
    checked(f"landlock rule for {path}", libc.syscall(ADD, ruleset, PATH_BENEATH, rule, 0), 0)
    if not str(path).startswith("/proc/"):  # a /proc entry is bound to its inode: keep that alive
        os.close(fd)
    else:
        os.set_inheritable(fd, True)
