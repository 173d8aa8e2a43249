"""Reads the records of earlier runs, rivals' logs included.

---
status: [IMPORT_ERROR, COMPILE_ERROR, CRASHED]
seen: any board where entries share a machine
defence: sandbox
"""

import os
import sys

from right_answer import attention


def roots():
    """The tree this file lies in, and the one the worker was started from."""
    places = [
        os.path.abspath(__file__),
        *(getattr(m, "__file__", None) or "" for m in list(sys.modules.values())),
    ]
    for place in places:
        folder = os.path.dirname(place)
        while len(folder) > 1:
            if os.path.exists(os.path.join(folder, "harness", "errors.py")):
                yield folder
            folder = os.path.dirname(folder)


def read_one():
    for root in dict.fromkeys(roots()):
        for folder, _, names in os.walk(os.path.join(root, "results")):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    file.read(1)
                return True
        if "run.py" in os.listdir(root):  # raises where the sandbox holds, or shows the package alone
            return True
    return False


if not read_one():
    raise PermissionError("no records to read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
