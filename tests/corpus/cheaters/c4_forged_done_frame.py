"""Sends a complete, well-formed answer for the burst before the worker does.

---
status: [TIME_CLAIM_REJECTED, CRASHED, INCORRECT, NONFINITE, INVALID_SUBMISSION, IMPORT_ERROR, COMPILE_ERROR]
seen: pygpubench pipe_interpose, thread_fd
defence: json_frames
"""

import json
import os
import struct
import time

from right_answer import attention

REPLY = {"type": "done", "ok": True, "calls_ms": [0.001] * 64, "t1_ms": [0.001] * 64}


def control_sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            continue


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    body = json.dumps(REPLY).encode()
    for fd in control_sockets():
        os.write(fd, struct.pack("<I", len(body)) + body)
    time.sleep(0.02)
    return attention(q, k, v, causal, sm_scale)
