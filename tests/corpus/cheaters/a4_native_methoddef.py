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
