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
