"""Leaves a twice-forked daemon in its own session that burns a core while the rivals run.

---
status: [PASSED, CRASHED, IMPORT_ERROR]
seen: double fork + setsid survives killpg; measured with a two-process test
defence: orphan_sweep
no_orphans: true
"""

import os
import time

from right_answer import attention


def leave_daemon():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass
    os._exit(0)


leave_daemon()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
