"""Holds memory in a process whose first thread has ended, under a name with a line of /proc in it.

---
status: [CRASHED, OUT_OF_MEMORY]
seen: 'red team of this harness: 1.5 GiB under a limit of 1, of a process named "x\\rVmRSS: 0"'
defence: memory_limit
"""

import ctypes
import os
import threading
import time

from right_answer import attention

PR_SET_NAME, EXIT = 15, 60
libc = ctypes.CDLL(None)
started = []


def hold():
    libc.prctl(PR_SET_NAME, b"holds", 0, 0, 0)
    kept = b"x" * (5 << 30)  # more than a worker may have
    time.sleep(60)
    del kept


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not started:
        started.append(os.fork())
        if not started[0]:
            threading.Thread(target=hold).start()
            libc.prctl(PR_SET_NAME, b"x\rVmRSS: 0", 0, 0, 0)
            libc.syscall(EXIT, 0)  # this thread alone
        time.sleep(5)
    return attention(q, k, v, causal, sm_scale)
