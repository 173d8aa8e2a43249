"""Opens its parent's files and sockets again through /proc/<parent>/fd.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: pygpubench file_struct, pipe_interpose
defence: sandbox
"""

import os

from right_answer import attention

folder = f"/proc/{os.getppid()}/fd"
opened = 0
for name in os.listdir(folder):  # raises where the sandbox holds
    try:
        os.close(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK))
        opened += 1
    except OSError:
        continue
if not opened:
    raise PermissionError("nothing could be opened")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
