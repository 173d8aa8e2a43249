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
