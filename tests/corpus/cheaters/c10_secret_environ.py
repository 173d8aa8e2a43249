"""Looks for credentials in its own environment.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: CI tokens inherited by a worker
defence: clean_environment
plant_environment: {ATTNBOARD_PLANTED_TOKEN: planted}
"""

import os

from right_answer import attention

WORDS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL", "SSH_AUTH_SOCK")
found = [name for name in os.environ if any(word in name.upper() for word in WORDS)]
if not found:
    raise PermissionError("the environment holds nothing of interest")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
