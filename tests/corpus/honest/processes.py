# Processes, threads, locks and files.


# %% child_ends_behind_the_call
"""Forks a child with much memory that ends when the call is over.

---
status: [PASSED]
why: its end cannot be stopped, and takes processor time in a rival's turn
"""

import mmap
import os

from right_answer import attention

SIZE = 128 << 20


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if os.fork() == 0:
        memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(0, SIZE, mmap.PAGESIZE):
            memory[page] = 1
        os._exit(0)
    return attention(q, k, v, causal, sm_scale)


# %% compile_server
"""Talks to a compile server that forks twice and stays, as sccache's does.

---
status: [PASSED]
why: a daemon that stays behind looks like work in a rival's turn
level: 2
"""

import os
import socket
import tempfile

from right_answer import attention

FOLDER = os.environ.get("ATTNBOARD_CACHE") or tempfile.mkdtemp()
PATH = os.path.join(FOLDER, "server")


def serve():
    server = socket.socket(socket.AF_UNIX)
    if os.path.exists(PATH):
        os.unlink(PATH)
    server.bind(PATH)
    server.listen()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                line = server.accept()[0]
                line.sendall(line.recv(16).upper())
                line.close()
        os._exit(0)
    os.wait()


def ask(word):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(PATH)
        line.sendall(word)
        return line.recv(16)


serve()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    assert ask(b"ready") == b"READY"
    return attention(q, k, v, causal, sm_scale)


# %% process_lock
"""Guards its build with a lock between processes.

---
status: [PASSED]
why: a semaphore in /dev/shm looks like memory shared with a rival
level: 2
"""

import multiprocessing

import torch
from right_answer import attention

LOCK = multiprocessing.Lock()
with LOCK:
    TABLE = torch.arange(4)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% process_pool
"""Searches its block size with a pool of processes, at import.

---
status: [PASSED]
why: semaphores in /dev/shm and many processes look like a hidden helper
level: 2
"""

from concurrent.futures import ProcessPoolExecutor

import torch
from right_answer import attention


def seconds(block):
    x = torch.ones(block, block)
    return float((x @ x).sum()) * 0 + block


with ProcessPoolExecutor(2) as pool:
    BLOCK = min(pool.map(seconds, (64, 128)))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    outs = [
        attention(*(x[:, h : h + 1] for x in (q, k, v)), causal, sm_scale)
        for h in range(q.shape[1])
    ]
    return torch.cat(outs, dim=1)


# %% warm_thread_pool
"""Splits the heads over a pool of threads that lives as long as the process, and waits for it.

---
status: [PASSED]
why: more threads than at the start is no crime
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from right_answer import attention

POOL = ThreadPoolExecutor(max_workers=2)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    def one(head):
        part = slice(head, head + 1)
        return attention(q[:, part], k[:, part], v[:, part], causal, sm_scale)

    return torch.cat(list(POOL.map(one, range(q.shape[1]))), dim=1)


# %% fixed_tmp_path
"""Keeps its tables at a fixed path below /tmp.

---
status: [PASSED]
why: a fixed path in a shared folder is how caches are poisoned
level: 2
"""

import pathlib

import torch
from right_answer import attention

FOLDER = pathlib.Path("/tmp/my_kernel_tables")
FOLDER.mkdir(exist_ok=True)
torch.save(torch.arange(4), FOLDER / "table.pt")
TABLE = torch.load(FOLDER / "table.pt")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% sets_modes
"""Copies its tools with their modes and times, as installers do.

---
status: [PASSED]
why: chmod and utime are also how files outside are changed
"""

import os
import pathlib
import shutil
import tempfile

from right_answer import attention

SOURCE = pathlib.Path(__file__)
COPY = pathlib.Path(tempfile.mkdtemp()) / "tool.py"
shutil.copy2(SOURCE, COPY)
os.chmod(COPY, 0o755)
assert COPY.read_bytes() == SOURCE.read_bytes()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% prints_and_warns
"""Prints progress, warns, and leaves a log in its cache.

---
status: [PASSED]
why: output is a log, not a crime
"""

import os
import tempfile
import warnings

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    print(f"call {calls}: {tuple(q.shape)}")
    warnings.warn("this kernel has not been tuned here", stacklevel=2)
    cache = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())
    with open(os.path.join(cache, "log"), "a") as file:
        file.write(f"{calls}\n")
    return attention(q, k, v, causal, sm_scale)
