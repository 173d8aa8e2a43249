"""Occupies the only CUPTI subscription before the harness asks for it, then calls SDPA.

---
status: [PASSED, LEFT_WORK_RUNNING]
needs_gpu: true
seen: CUPTI allows one subscriber before CUDA 13.3
defence: class_of_work
work_class: [library, mixed, unknown]
"""

import ctypes

import torch


def occupy():
    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if "libcupti" in line), "libcupti.so")
    handle = ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    keep = callback(lambda *args: None)
    ctypes.CDLL(path).cuptiSubscribe(ctypes.byref(handle), keep, None)
    return keep


KEEP = occupy()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale
    )
