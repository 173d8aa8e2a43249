# Processes that end before they have shown anything; hangs, hoards and crashes of one call.


# %% c6_exec_true
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


# %% c6_exit_at_import
"""Ends with exit code 0 at import: success for a harness that trusts the code.

---
status: [CRASHED, IMPORT_ERROR, COMPILE_ERROR]
seen: KernelBench-Hard trusted_entrypoint.py; pygpubench
defence: no_sample_no_row
"""

import os

import torch

os._exit(0)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.zeros_like(q)


# %% c6_exit_in_the_middle
"""Right for thirty calls, then `os._exit(0)` before anybody can look.

---
status: [CRASHED]
seen: KernelBench-Hard trusted_entrypoint.py; pygpubench
defence: missing_is_failure
"""

import os

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    if calls > 30:
        os._exit(0)
    return attention(q, k, v, causal, sm_scale)


# %% c6_kill_self
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


# %% c6_system_exit
"""Raises SystemExit(0) in the call.

---
status: [CRASHED, IMPORT_ERROR, COMPILE_ERROR]
seen: KernelBench-Hard trusted_entrypoint.py
defence: no_sample_no_row
"""


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    raise SystemExit(0)


# %% c16_deep_folders
"""Leaves 1,500 folders in one another in its scratch folder: who removes them level by level runs
out of stack.

---
status: [PASSED]
seen: found in this harness; shutil.rmtree calls itself for every level
defence: read_with_limits
beside: [eager_chunked]
neutral: the folder is removed whatever its depth, and later runs never see it
"""

import os

from right_answer import attention

here = os.getcwd()
os.chdir(os.environ["TMPDIR"])
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
os.chdir(here)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% c16_hang
"""Never returns.

---
status: [TIMED_OUT]
seen: a harness without a deadline waits for ever
defence: deadline
slow: true
"""

import time


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        time.sleep(1)


# %% c16_hang_at_import
"""Never finishes its import.

---
status: [TIMED_OUT]
seen: 'a stale lock file spins for ever (pytorch #189245)'
defence: deadline
slow: true
"""

import time

while True:
    time.sleep(1)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return q


# %% c16_hang_deaf
"""Never returns and ignores every signal that can be ignored.

---
status: [TIMED_OUT]
seen: flashinfer-bench ends workers with terminate() only
defence: deadline
slow: true
"""

import signal
import time

for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        continue


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue


# %% c16_huge_file
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


# %% c16_leaky_child
"""Lets a child process hoard the memory, because only the worker's own is watched.

---
status: [OUT_OF_MEMORY]
seen: limits by process instead of by tree
defence: memory_limit
"""

import os
import time

from right_answer import attention


def hoard():
    kept = []
    while sum(map(len, kept)) < (12 << 30):
        kept.append(bytearray(b"x") * (64 << 20))
    time.sleep(60)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if os.fork() == 0:
        hoard()
        os._exit(0)
    time.sleep(1.5)
    return attention(q, k, v, causal, sm_scale)


# %% c16_memory_bomb
"""Eats memory until the machine has none.

---
status: [OUT_OF_MEMORY]
seen: a rival that makes everybody else fail
defence: memory_limit
"""

hoard = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        hoard.append(bytearray(b"x") * (64 << 20))


# %% c16_segfault
"""Writes to address zero in the middle of a burst.

---
status: [CRASHED]
seen: BackendBench (the faulty row vanished after a crash)
defence: no_sample_no_row
"""

import ctypes

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    if calls > 6:
        ctypes.memset(0, 0, 1)
    return attention(q, k, v, causal, sm_scale)


# %% c16_slow_within_deadlines
"""Right and within every deadline, but so slow that its checks alone would keep a run busy for
hours.

---
status: [TIMED_OUT]
seen: found in this harness by a reader; a deadline for each of fifteen checks and none for all
defence: budget
slow: true
"""

import time

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(1.4)
    return attention(q, k, v, causal, sm_scale)
