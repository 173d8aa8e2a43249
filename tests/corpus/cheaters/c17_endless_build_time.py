"""Its builder says that building took 10 to the power of 399 seconds, which no float can hold.

---
status: [INVALID_SUBMISSION]
needs_gpu: true
seen: found in this harness by a reader; float() of a JSON number raises OverflowError
defence: typed_messages
beside: [eager_chunked]
language: triton
"""

import sys

from right_answer import attention

wire = sys.modules["harness.process.wire"]
send = wire.send


def exaggerate(sock, message, *rest, **options):
    if message.get("op") == "built":
        message["seconds"] = 10**399
    send(sock, message, *rest, **options)


wire.send = exaggerate


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
