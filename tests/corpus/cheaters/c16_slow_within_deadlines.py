"""Right and within every deadline, but so slow that its checks alone would keep a run busy for
hours.

---
status: [TIMED_OUT]
seen: found in this harness by a reader; a deadline for each of fifteen checks and none for all
defence: budget
slow: true
"""

import time

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(1.4)
    return attention(q, k, v, causal, sm_scale)
