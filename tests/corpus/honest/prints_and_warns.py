"""Prints progress, warns, and leaves a log in its cache.

---
status: [PASSED]
why: output is a log, not a crime
"""

import os
import tempfile
import warnings

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    print(f"call {calls}: {tuple(q.shape)}")
    warnings.warn("this kernel has not been tuned here", stacklevel=2)
    cache = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())
    with open(os.path.join(cache, "log"), "a") as file:
        file.write(f"{calls}\n")
    return attention(q, k, v, causal, sm_scale)
