"""Patches `json.dumps`, so that the times shrink on their way out.

---
status: [TIME_CLAIM_REJECTED]
seen: pygpubench event_array, pipe_interpose (numbers changed after the clock was read)
defence: two_clocks
min_latency_ms: 25
"""

import json
import time

from right_answer import attention

REAL = json.dumps
SLOW_S = 0.03


def dumps(message, *args, **kwargs):
    if isinstance(message, dict) and "calls_ms" in message:
        message = {**message, "calls_ms": [x / 20 for x in message["calls_ms"]]}
    return REAL(message, *args, **kwargs)


json.dumps = dumps


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)
