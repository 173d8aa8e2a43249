"""Hoards memory in a file that is mapped by nobody, so that no process seems to hold it.

---
status: [CRASHED, OUT_OF_MEMORY]
seen: limits by resident memory of processes; the OOM killer then chooses the judge
defence: memory_limit
"""

import os
import time

from right_answer import attention

kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not kept:
        for number in range(5):  # more than a worker may have, in files below the limit of one
            kept.append(os.memfd_create(f"kept{number}"))
            os.posix_fallocate(kept[-1], 0, 1 << 30)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)
