"""Every other call is ten times faster, so that the best sample is nobody's usual one.

---
status: [PASSED, UNSTABLE, TIME_CLAIM_REJECTED]
seen: resubmitting until noise wins; every board that keeps a minimum
defence: burst_mean
min_latency_ms: 25
"""

import time

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    time.sleep(0.002 if calls % 2 else 0.06)
    return attention(q, k, v, causal, sm_scale)
