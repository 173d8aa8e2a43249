# Processes that hide from their accounting.


# %% c22_child_of_the_engine
"""Starts a process that is no child of its own but of whoever started it, and so nobody's to count.

---
status: [CRASHED]
seen: 'red team of this harness: CLONE_PARENT hid 1400 MiB from a limit of 1 GiB at level 1'
defence: sandbox
"""

import ctypes
import mmap
import os
import platform
import signal
import time

from right_answer import attention

CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
CLONE_PARENT = 0x8000
SIZE = 1400 << 20
libc = ctypes.CDLL(None)
started = []


def hoard():
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, SIZE, mmap.PAGESIZE):
        memory[page] = 1
    time.sleep(3)
    os._exit(0)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not started:
        started.append(libc.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
        if started[0] == 0:
            hoard()
        if started[0] < 0:
            raise OSError("no such child")
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)


# %% c22_fork_hoppers
"""Leaves daemons that fork, end and so replace each other faster than they can be signalled.

---
status: [CRASHED, OVER_QUOTA]  # at level 1 its dead are its worker's to keep
seen: double forks; each is gone before it can be stopped or reaped
defence: orphan_sweep
"""

import os
import struct
import tempfile
import time

from right_answer import attention

BEATS = os.path.join(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()), "beats")
LIFE_S = 60


def hop():
    os.setsid()
    born, file = time.monotonic(), os.open(BEATS, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    while time.monotonic() < born + LIFE_S:
        if os.fork():
            os._exit(0)
        os.write(file, struct.pack("d", time.monotonic()))
    os._exit(0)


def longest_silence_s(start, end):
    with open(BEATS, "rb") as file:
        beats = [beat for (beat,) in struct.iter_unpack("d", file.read()[-(8 << 16) :])]
    heard = [start, *sorted(beat for beat in beats if start < beat < end), end]
    return max(after - before for before, after in zip(heard, heard[1:]))


for _ in range(2):
    if os.fork() == 0:
        hop()
ended = 0.0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global ended
    begun = time.monotonic()
    pause_s = begun - ended
    if ended and pause_s > 0.02 and longest_silence_s(ended, begun) > 0.6 * pause_s:
        raise RuntimeError("they were stopped in the others' turns")
    out = attention(q, k, v, causal, sm_scale)
    ended = time.monotonic()
    return out


# %% c22_woken_by_timer
"""Has timers of its own send SIGCONT to its stopped processes, which then compute in others' turns.

---
status: [IMPORT_ERROR]
seen: 'red team of this harness: 182 beats of six processes in 0.35 s of being stopped'
defence: sandbox
"""

import ctypes
import os
import signal
import struct
import tempfile
import time

from right_answer import attention

BEATS = os.path.join(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()), "beats")
LIFE_S, PERIOD_NS, WORK_S = 60, 2_000_000, 0.002
libc = ctypes.CDLL("librt.so.1")


def wake_by_timer():
    """A timer with SIGEV_SIGNAL and SIGCONT."""
    event, timer = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0), ctypes.c_void_p()
    if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError("no timer")
    return timer


def burn():
    signal.signal(signal.SIGCONT, lambda *_: None)
    timer, again = wake_by_timer(), (ctypes.c_long * 4)(0, PERIOD_NS, 0, PERIOD_NS)
    born, file = time.monotonic(), os.open(BEATS, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    while time.monotonic() < born + LIFE_S:
        os.write(file, struct.pack("d", time.monotonic()))
        libc.timer_settime(timer, 0, again, None)  # a stop that meets a waiting signal ends it
        busy = time.monotonic() + WORK_S
        while time.monotonic() < busy:
            pass
        time.sleep(0.003)
    os._exit(0)


def beats_between(start, end):
    with open(BEATS, "rb") as file:
        return sum(start < beat < end for (beat,) in struct.iter_unpack("d", file.read()[-(8 << 16) :]))


wake_by_timer()
for _ in range(6):
    if os.fork() == 0:
        burn()
ended = 0.0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global ended
    begun = time.monotonic()
    if ended and begun - ended > 0.2 and not beats_between(ended + 0.05, begun - 0.05):
        raise RuntimeError("they were stopped in the others' turns")
    out = attention(q, k, v, causal, sm_scale)
    ended = time.monotonic()
    return out


# %% c25_gpu_memory_of_a_child
"""Lets a child process take the GPU's memory, because only the worker's own is watched.

---
status: [OUT_OF_MEMORY]
needs_gpu: true
seen: limits by process instead of by tree
defence: memory_limit
"""

import subprocess
import sys

import torch
from right_answer import CUDA_IN_CHILD, attention

HOARD = """
import torch
kept = [torch.empty(2 << 30, dtype=torch.uint8, device="cuda") for _ in range(15)]
print("full", flush=True)
input()
"""
child = subprocess.Popen(
    [sys.executable, "-c", CUDA_IN_CHILD + HOARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
if child.stdout.readline() != b"full\n":
    raise RuntimeError("the child is not full")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
