"""Confesses a failure in 8,000 emoji, which take three times as much room when the judge repeats
them.

---
status: [UNSUPPORTED]
seen: found in this harness by a reader; a frame that is legal on one line and too long on the next
defence: typed_messages
beside: [eager_chunked]
"""

import json
import sys
from types import SimpleNamespace

from right_answer import attention


def dumps(message, **options):
    if message.get("op") == "failed":
        message["message"] = "😀" * 8000
    return json.dumps(message, ensure_ascii=False)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if sm_scale is not None:
        sys.modules["harness.process.wire"].json = SimpleNamespace(dumps=dumps, loads=json.loads)
        raise NotImplementedError
    return attention(q, k, v, causal, None)
