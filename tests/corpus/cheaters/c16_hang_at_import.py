"""Never finishes its import.

---
status: [TIMED_OUT]
seen: 'a stale lock file spins for ever (pytorch #189245)'
defence: deadline
slow: true
"""

import time

while True:
    time.sleep(1)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return q
