# Clocks, events and the timing code itself, changed from inside the worker.


# %% a3_code_swap
"""Leaves every object in place and swaps `__code__` of the worker's own timing functions.

---
status: [TIME_CLAIM_REJECTED]
seen: SOL-ExecBench id() snapshots (a swapped __code__ leaves id unchanged)
defence: two_clocks
min_latency_ms: 25
"""

import gc
import time
import types

from right_answer import attention

SLOW_S = 0.03
NAMES = {"perf_counter", "perf_counter_ns", "elapsed_time"}


def swap(function):
    """Same object, same id, other code: a number it returns is a twentieth."""
    real = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )

    def told(*args, **kwargs):
        value = real(*args, **kwargs)
        if isinstance(value, float):
            return value / 20
        if isinstance(value, list) and value and all(isinstance(x, float) for x in value):
            return [x / 20 for x in value]
        return value

    key = f"_told_{id(function)}"
    function.__globals__[key] = told
    free = function.__code__.co_freevars
    names = ", ".join(free)
    source = f"def outer({names}):\n def f(*a, **k):\n  {names or 0}\n"
    source += f"  return {key}(*a, **k)\n return f"
    space = {}
    exec(source, space)
    function.__code__ = space["outer"](*free).__code__


def install():
    gc.unfreeze()  # what was imported before this process was forked is kept out of sight otherwise
    for value in gc.get_objects():
        if isinstance(value, types.FunctionType) and value.__module__ != __name__:
            if NAMES & set(value.__code__.co_names):
                swap(value)


ready = False


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global ready
    if not ready:
        ready = True
        install()
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)


# %% a3_metaclass_patch
"""Replaces the Event class itself by one whose `elapsed_time` divides by twenty.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'SOL-ExecBench monkey_patch; reference-kernels #162 (class swapped, not the method)'
defence: two_clocks
min_latency_ms: 0.5
"""

import sys

import torch
from right_answer import attention

REAL = torch.cuda.Event


class Event(REAL):
    def elapsed_time(self, end):
        return REAL.elapsed_time(self, end) / 20


for module in list(sys.modules.values()):
    names = getattr(module, "__dict__", None)
    if module is not sys.modules[__name__] and isinstance(names, dict):
        for name, value in list(names.items()):
            if value is REAL:
                names[name] = Event


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(2_000_000)  # a slow kernel, about one millisecond
    return attention(q, k, v, causal, sm_scale)


# %% a3_patch_clock_setattr
"""Sleeps as a stand-in for a slow kernel and patches `time.perf_counter` to hide it.

---
status: [TIME_CLAIM_REJECTED]
seen: 'reference-kernels #162; SOL-ExecBench monkey_patch; kernelguard TIMER_MONKEYPATCH'
defence: two_clocks
min_latency_ms: 25
"""

import sys
import time

from right_answer import attention

REAL = time.perf_counter
SLOW_S = 0.03


def fake():
    return REAL() / 20


def install(fake):
    """Put `fake` wherever any module holds the real clock."""
    time.perf_counter = fake
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if module is sys.modules[__name__] or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is REAL:
                names[name] = fake


install(fake)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)


# %% a3_patch_event_setattr
"""Patches `torch.cuda.Event.elapsed_time` to report a twentieth of the truth.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'reference-kernels #162; SOL-ExecBench monkey_patch'
defence: two_clocks
min_latency_ms: 0.5
"""

import torch
from right_answer import attention


def install():
    name = "elapsed" + "_time"
    for owner in (torch.cuda.Event, torch.cuda.Event.__mro__[1]):
        real = getattr(owner, name)
        try:
            setattr(owner, name, lambda self, end, real=real: real(self, end) / 20)
            return
        except TypeError:
            continue


install()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(2_000_000)  # a slow kernel, about one millisecond
    return attention(q, k, v, causal, sm_scale)


# %% a4_native_detour
"""Writes a jump over `cudaEventElapsedTime` and `cuEventElapsedTime` in the loaded libraries.

---
status: [TIME_CLAIM_REJECTED, CRASHED]
needs_gpu: true
seen: pygpubench function_detour, got_patch
defence: two_clocks
min_latency_ms: 0.5
"""

import ctypes
import struct

import torch
from right_answer import attention

LIES = []
PROT_RWX = 7


def detour(library, name):
    """Overwrite the first 12 bytes with `mov rax, lie; jmp rax`."""
    try:
        address = ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return

    @ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p
    )
    def lie(milliseconds, start, end):
        milliseconds[0] = 0.01
        return 0

    LIES.append(lie)
    target = ctypes.cast(lie, ctypes.c_void_p).value
    libc = ctypes.CDLL(None)
    page = address & ~4095
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), PROT_RWX) == 0:
        code = b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"
        ctypes.memmove(address, code, len(code))


def libraries():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/" in line}
    return sorted(p for p in paths if "libcudart" in p or "libcuda.so" in p)


for path in libraries():
    for symbol in ("cudaEventElapsedTime", "cudaEventElapsedTime_v2"):
        detour(path, symbol)
    for symbol in ("cuEventElapsedTime", "cuEventElapsedTime_v2"):
        detour(path, symbol)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(2_000_000)  # a slow kernel, about one millisecond
    return attention(q, k, v, causal, sm_scale)


# %% a4_native_methoddef
"""Overwrites the C function behind `time.perf_counter`: references taken before do not help.

---
status: [TIME_CLAIM_REJECTED]
seen: pygpubench function_detour, got_patch
defence: two_clocks
min_latency_ms: 25
"""

import ctypes
import time

from right_answer import attention

SLOW_S = 0.03
real = time.monotonic  # another C function, left alone
start = time.perf_counter() - real()


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
def fake(module, nothing):
    return start + real() / 20


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
def fake_ns(module, nothing):
    return int((start + real() / 20) * 1e9)


def hook(function, replacement):
    """PyCFunctionObject: m_ml follows the 16-byte head; ml_meth is the second word of *m_ml."""
    method = ctypes.c_void_p.from_address(id(function) + 16).value
    ctypes.c_void_p.from_address(method + 8).value = ctypes.cast(replacement, ctypes.c_void_p).value


hook(time.perf_counter, fake)
hook(time.perf_counter_ns, fake_ns)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)
