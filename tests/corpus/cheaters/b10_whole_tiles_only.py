"""Handles whole tiles of 16 rows and leaves the rest of an odd length unwritten.

---
status: [INCORRECT]
seen: a kernel without a tail; claims every length
defence: stress
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = attention(q, k, v, causal, sm_scale)
    whole = q.shape[2] // 16 * 16
    out[:, :, whole:] = 0
    return out
