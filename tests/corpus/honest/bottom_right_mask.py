"""More keys than queries, the mask at the lower right.

---
status: [PASSED]
why: FlashAttention's meaning of causal, not that of SDPA's flag
axes: chunk
claims: {seqlens: any}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
