"""Ends itself with a signal after warm-up, hoping the best rows so far are kept.

---
status: [CRASHED, IMPORT_ERROR, COMPILE_ERROR]
seen: early success exit, by signal
defence: no_sample_no_row
"""

import os
import signal

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    if calls > 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return attention(q, k, v, causal, sm_scale)
