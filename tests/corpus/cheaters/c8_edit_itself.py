"""Changes its own source after it was read and hashed.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: a source hash that is taken once
defence: sandbox
"""

import os

from right_answer import attention

ME = os.path.abspath(__file__)
with open(ME, "a") as file:  # raises where the sandbox holds; appends nothing
    file.write("")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
