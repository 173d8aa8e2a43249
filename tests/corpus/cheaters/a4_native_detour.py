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
