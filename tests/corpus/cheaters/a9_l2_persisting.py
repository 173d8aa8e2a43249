"""Keeps K and V in the persisting part of L2, so that a flush does not reach them.

---
status: [PASSED, TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'llm.c PR #851 (3530 GB/s on an 864 GB/s card); pygpubench #49; nvbench #458'
defence: fresh_inputs
neutral: the inputs of a burst are written after the clock started, so nothing warm survives
"""

import ctypes

import torch
from right_answer import attention


class Window(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("num_bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("pad", ctypes.c_char * 64),
    ]


def runtime():
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart" in line)
    return ctypes.CDLL(path)


PERSISTING_LIMIT, ACCESS_POLICY, PERSISTING = 6, 1, 2


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    cudart = runtime()
    cudart.cudaDeviceSetLimit(PERSISTING_LIMIT, ctypes.c_size_t(32 << 20))
    window = Window(k.data_ptr(), k.numel() * 4, 1.0, PERSISTING, 0)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    cudart.cudaStreamSetAttribute(stream, ACCESS_POLICY, ctypes.byref(window))
    return attention(q, k, v, causal, sm_scale)
