r"""Its manifest holds half a surrogate pair, which no file of records can store.

---
status: [INVALID_SUBMISSION]
seen: found in this harness by a reader; YAML that a parser takes and nobody behind it
defence: read_with_limits
beside: [eager_chunked]
version_of: "\uD800"
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
