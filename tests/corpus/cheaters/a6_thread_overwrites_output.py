"""Claims at once; a thread finds the shared output buffer and fills it before the judge looks.

---
status: [INCORRECT, TIME_CLAIM_REJECTED, CRASHED]
seen: SOL-ExecBench thread injection, aimed at the harness's own buffer
defence: private_copy
"""

import _thread
import ctypes
import time

import torch
from right_answer import attention


def shared_blocks():
    """(start, end) of every writable shared mapping of this process."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            if mode == "rw-s":
                start, end = (int(x, 16) for x in span.split("-"))
                yield start, end


def fill(answer, stale):
    time.sleep(0.03)
    for start, end in shared_blocks():
        block = (ctypes.c_char * (end - start)).from_address(start)
        at = bytes(block).find(stale)
        if at >= 0:
            ctypes.memmove(start + at, answer, len(answer))
            return


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    stale = torch.full_like(q, 7.0)
    marker = calls_marker(stale)
    answer = bytes(
        attention(q, k, v, causal, sm_scale).contiguous().view(torch.uint8).flatten().tolist()
    )
    _thread.start_new_thread(fill, (answer, marker))
    return stale


count = 0


def calls_marker(stale):
    """Make the garbage of this call findable: its first four values count the calls."""
    global count
    count += 1
    stale.view(-1)[:4] = torch.tensor([count % 61, count % 59, count % 53, 5.0], dtype=stale.dtype)
    return bytes(stale.view(-1)[:64].contiguous().view(torch.uint8).tolist())
