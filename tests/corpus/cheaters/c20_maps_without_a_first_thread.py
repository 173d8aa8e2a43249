"""Lets go of shared memory that it has filled, in a process whose first thread has ended.

---
status: [CRASHED, OUT_OF_MEMORY]
seen: 'red team of this harness: 1.5 GiB under a limit of 1, which only /proc/PID/map_files had told'
defence: memory_limit
"""

import ctypes
import mmap
import os
import threading
import time

from right_answer import attention

EXIT, PIECE, POPULATE_WRITE = 60, 1 << 29, 23
started = []


def hold():
    kept = []
    for _ in range(10):  # more than a worker may have
        kept.append(mmap.mmap(-1, PIECE))
        kept[-1].madvise(POPULATE_WRITE)
        kept[-1].madvise(mmap.MADV_DONTNEED)
    time.sleep(60)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not started:
        started.append(os.fork())
        if not started[0]:
            threading.Thread(target=hold).start()
            ctypes.CDLL(None).syscall(EXIT, 0)  # this thread alone
        time.sleep(8)
    return attention(q, k, v, causal, sm_scale)
