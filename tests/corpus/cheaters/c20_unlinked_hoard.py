"""Fills the disk with files of its cache that it keeps open and takes the names of.

---
status: [OVER_QUOTA]
seen: 'red team of this harness: 300 MiB under a limit of 100, in files that no folder lists'
defence: quota
"""

import os
import time

from right_answer import attention

SIZE = 2 << 30  # more than an entrant may keep
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not kept:
        path = os.path.join(os.environ["ATTNBOARD_CACHE"], "kept")
        kept.append(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        os.unlink(path)
        os.posix_fallocate(kept[0], 0, SIZE)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)
