"""Leaves a program in its cache that runs as the user of the harness, whoever starts it.

---
status: [IMPORT_ERROR, CRASHED]
seen: a mode given to open needs no chmod
defence: sandbox
"""

import os
import stat
import tempfile

from right_answer import attention

PATH = os.path.join(os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir()), "program")
os.umask(0)
fd = os.open(PATH, os.O_CREAT | os.O_WRONLY, 0o4755)  # no chmod is needed for it
made = os.fstat(fd).st_mode & stat.S_ISUID
os.close(fd)
os.unlink(PATH)
if not made:
    raise PermissionError("the bit was not set")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
