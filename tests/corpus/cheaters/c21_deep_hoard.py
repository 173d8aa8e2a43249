"""Keeps files in its cache deeper than a path can name: who counts by paths counts nothing, and who
removes the folder level by level runs out of stack.

---
status: [OVER_QUOTA]
seen: found in this harness; a count that passes over what it cannot open
defence: quota
beside: [eager_chunked]
"""

import os
import tempfile
import time

from right_answer import attention

JUNK = b"x" * (16 << 20)
here = os.getcwd()
os.chdir(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()))
for _ in range(3000):
    os.makedirs("d", exist_ok=True)
    os.chdir("d")
for number in range(8):
    with open(f"junk{number}", "wb") as file:
        file.write(JUNK)
os.chdir(here)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(0.5)
    return attention(q, k, v, causal, sm_scale)
