"""Forks a child with much memory that ends when the call is over.

---
status: [PASSED]
why: its end cannot be stopped, and takes processor time in a rival's turn
"""

import mmap
import os

from right_answer import attention

SIZE = 128 << 20


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if os.fork() == 0:
        memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(0, SIZE, mmap.PAGESIZE):
            memory[page] = 1
        os._exit(0)
    return attention(q, k, v, causal, sm_scale)
