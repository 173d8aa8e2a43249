"""Leaves a library in the shared temporary folder for the next run to load.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: cache poisoning through shared folders
defence: sandbox
"""

import os

import torch
from right_answer import attention

FOLDER = "/tmp/torchinductor_planted"
os.makedirs(FOLDER, exist_ok=True)  # raises where the sandbox holds, or lies in a folder of its own
mine = (os.environ.get("ATTNBOARD_CACHE", FOLDER), os.path.dirname(__file__))  # its own, and no way on
others = any(names for folder, _, names in os.walk("/tmp") if not folder.startswith(mine))
os.rmdir(FOLDER)
if not others:
    raise PermissionError("nobody else comes here")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
