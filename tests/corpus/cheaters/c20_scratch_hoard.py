"""Hoards memory in files of its scratch folder, which lies in memory too.

---
status: [CRASHED, OUT_OF_MEMORY, OVER_QUOTA]
seen: limits by resident memory of processes; tmpfs is nobody's
defence: memory_limit
level: 2
"""

import os
import tempfile

from right_answer import attention

JUNK = b"x" * (64 << 20)
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while len(kept) < 80:
        kept.append(tempfile.TemporaryFile())
        os.write(kept[-1].fileno(), JUNK)
    return attention(q, k, v, causal, sm_scale)
