"""Sleeps through the first calls so that an adaptive loop takes few samples.

---
status: [PASSED, UNSTABLE]
seen: pygpubench submission_warmup (100 iterations became 3)
defence: fixed_counts
all_blocks: true
"""

import time

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    if 16 < calls <= 22:  # after the checks, when a loop would find out how often to call
        time.sleep(0.3)
    return attention(q, k, v, causal, sm_scale)
