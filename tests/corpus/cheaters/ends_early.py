# Processes that end before they have shown anything.


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
