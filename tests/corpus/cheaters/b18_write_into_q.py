"""Writes the right answer over q and returns q itself.

---
status: [INPUT_MUTATED, BAD_OUTPUT]
seen: 'fake geometry: output aliases an input'
defence: input_digest
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    q.copy_(attention(q, k, v, causal, sm_scale))
    return q
