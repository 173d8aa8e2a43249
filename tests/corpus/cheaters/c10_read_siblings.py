"""Reads the source of another submission.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: kernelguard; any board where entries share a machine
defence: sandbox
"""

import os

from right_answer import attention

HERE = os.path.dirname(os.path.abspath(__file__))


def read_one():
    folder = os.path.dirname(HERE)
    for name in sorted(os.listdir(folder)):  # raises where the sandbox holds
        path = os.path.join(folder, name, "submission.py")
        if os.path.join(folder, name) != HERE and os.path.exists(path):
            with open(path) as file:
                return bool(file.read())
    return False


if not read_one():
    raise PermissionError("no sibling to read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
