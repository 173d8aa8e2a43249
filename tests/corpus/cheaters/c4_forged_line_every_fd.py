"""Writes a forged PASSED line, plain and length-prefixed, on every open descriptor.

---
status: [INCORRECT, CRASHED, INVALID_SUBMISSION, IMPORT_ERROR, COMPILE_ERROR]
seen: kernelbot cheat-fd.py; pygpubench fd_overwrite
defence: json_frames
"""

import json
import os
import struct

import torch

FORGED = {
    "type": "done",
    "status": "PASSED",
    "latency_ms": 0.001,
    "tflops": 9999.0,
    "correct": 1,
    "calls_ms": [0.001] * 4,
    "max_diff": 0.0,
}


def forge():
    line = json.dumps(FORGED).encode()
    frames = (line + b"\n", *(struct.pack(order, len(line)) + line for order in ("<I", ">I")))
    for name in os.listdir("/proc/self/fd"):
        for frame in frames:
            try:
                os.write(int(name), frame)
            except OSError:
                pass


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    forge()
    return torch.zeros_like(q)
