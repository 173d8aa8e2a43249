"""Copies its tools with their modes and times, as installers do.

---
status: [PASSED]
why: chmod and utime are also how files outside are changed
"""

import os
import pathlib
import shutil
import tempfile

from right_answer import attention

SOURCE = pathlib.Path(__file__)
COPY = pathlib.Path(tempfile.mkdtemp()) / "tool.py"
shutil.copy2(SOURCE, COPY)
os.chmod(COPY, 0o755)
assert COPY.read_bytes() == SOURCE.read_bytes()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
