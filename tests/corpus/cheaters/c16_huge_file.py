"""Fills the disk with one file.

---
status: [CRASHED, COMPILE_ERROR, IMPORT_ERROR]
seen: a full disk loses everybody's records
defence: sandbox
"""

import os
import tempfile

from right_answer import attention

CACHE = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    with open(os.path.join(CACHE, "junk"), "wb") as file:
        file.seek(64 << 30)
        file.write(b"x")
        file.flush()
    os.unlink(os.path.join(CACHE, "junk"))
    return attention(q, k, v, causal, sm_scale)
