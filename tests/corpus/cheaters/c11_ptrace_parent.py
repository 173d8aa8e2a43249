"""Attaches to its parent as a debugger.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: pygpubench ptrace
defence: sandbox
"""

import ctypes
import os

from right_answer import attention

PTRACE_SEIZE = 0x4206
victim = os.getppid()
helper = os.fork()
if helper == 0:  # lets go by ending, so that a victim that was caught can go on
    seized = ctypes.CDLL(None).ptrace(PTRACE_SEIZE, victim, 0, 0) == 0
    os._exit(0 if seized else 1)
if os.waitpid(helper, 0)[1] != 0:
    raise PermissionError("the parent cannot be traced")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
