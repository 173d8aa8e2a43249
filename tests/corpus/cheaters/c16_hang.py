"""Never returns.

---
status: [TIMED_OUT]
seen: a harness without a deadline waits for ever
defence: deadline
slow: true
"""

import time


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        time.sleep(1)
