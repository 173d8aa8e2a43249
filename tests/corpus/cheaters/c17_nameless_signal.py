"""Ends itself with a real-time signal, which has no name that the engine could look up.

---
status: [CRASHED]
seen: found in this harness; signal.Signals(35) raises ValueError
defence: typed_messages
beside: [eager_chunked]
"""

import os


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    os.kill(os.getpid(), 35)
