"""Replaces its own process by /bin/true in the middle of a burst.

---
status: [CRASHED, IMPORT_ERROR, COMPILE_ERROR]
seen: early success exit, by exec
defence: no_sample_no_row
"""

import os

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    if calls > 6:
        os.execv("/bin/true", ["/bin/true"])
    return attention(q, k, v, causal, sm_scale)
