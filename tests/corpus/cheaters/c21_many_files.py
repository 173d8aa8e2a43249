"""Fills the disk with many files, each below the limit of one, and leaves them in its cache.

---
status: [OVER_QUOTA]
seen: a limit of one file is no limit of a folder
defence: quota
"""

import os
import tempfile

from right_answer import attention

JUNK = b"x" * (64 << 20)
CACHE = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for number in range(24):
        path = os.path.join(CACHE, f"junk{number}")
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(JUNK)
    return attention(q, k, v, causal, sm_scale)
