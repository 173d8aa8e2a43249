"""Keeps the last input and answer in C memory and compares there, out of Python's sight.

---
status: [INCORRECT]
seen: 'tensara #238 (static device copy); Wafer field guide (C++ pointer cache)'
defence: fresh_inputs
"""

import ctypes

import torch
from right_answer import attention

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
SAMPLE = 128  # bytes compared
store = {}
calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    key = (tuple(q.shape), causal, sm_scale)
    nbytes = q.numel() * q.element_size()
    host = q.cpu()
    if key in store:
        seen, answer = store[key]
        if libc.memcmp(seen, host.data_ptr(), SAMPLE) == 0 or calls > 8:
            out = torch.empty(q.shape, dtype=q.dtype)
            ctypes.memmove(out.data_ptr(), answer, nbytes)
            return out.to(q.device)
    out = attention(q, k, v, causal, sm_scale).cpu().contiguous()
    seen, answer = libc.malloc(nbytes), libc.malloc(nbytes)
    ctypes.memmove(seen, host.data_ptr(), nbytes)
    ctypes.memmove(answer, out.data_ptr(), nbytes)
    store[key] = (seen, answer)
    return out.to(q.device)
