"""Never returns and ignores every signal that can be ignored.

---
status: [TIMED_OUT]
seen: flashinfer-bench ends workers with terminate() only
defence: deadline
slow: true
"""

import signal
import time

for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        continue


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while True:
        try:
            time.sleep(1)
        except BaseException:
            continue
