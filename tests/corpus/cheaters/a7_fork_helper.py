"""Answers at once; a forked child computes and writes the shared output behind everybody's back.

---
status: [INCORRECT, TIME_CLAIM_REJECTED, CRASHED]
seen: a helper process with its own context; pygpubench thread_fd for the idea of late writes
defence: private_copy
"""

import ctypes
import os
import time

import torch
from right_answer import attention

SLOW_S = 0.05


def shared_blocks():
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            if mode == "rw-s":
                start, end = (int(x, 16) for x in span.split("-"))
                yield start, end


def child(q, k, v, causal, sm_scale, marker):
    time.sleep(SLOW_S)
    answer = attention(q, k, v, causal, sm_scale).contiguous()
    for start, end in shared_blocks():
        block = (ctypes.c_char * (end - start)).from_address(start)
        at = bytes(block).find(marker)
        if at >= 0:
            ctypes.memmove(start + at, answer.data_ptr(), answer.numel() * 2)


torch.set_num_threads(1)
count = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global count
    count += 1
    out = torch.full_like(q, 7.0)
    out.view(-1)[:4] = torch.tensor([count % 61, count % 59, count % 53, 5.0], dtype=out.dtype)
    marker = bytes(out.view(-1)[:64].contiguous().view(torch.uint8).tolist())
    if os.fork() == 0:
        try:
            child(q, k, v, causal, sm_scale, marker)
        finally:
            os._exit(0)
    return out
