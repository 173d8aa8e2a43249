"""Lets a child process hoard the memory, because only the worker's own is watched.

---
status: [OUT_OF_MEMORY]
seen: limits by process instead of by tree
defence: memory_limit
"""

import os
import time

from right_answer import attention


def hoard():
    kept = []
    while sum(map(len, kept)) < (12 << 30):
        kept.append(bytearray(b"x") * (64 << 20))
    time.sleep(60)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if os.fork() == 0:
        hoard()
        os._exit(0)
    time.sleep(1.5)
    return attention(q, k, v, causal, sm_scale)
