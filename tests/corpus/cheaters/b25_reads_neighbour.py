"""Packed sequences as one: a row sees the sequences before its own.

---
status: [INCORRECT]
seen: packing before transformers 4.44, which lost the edges (huggingface.co/blog/packing-with-FA2)
defence: contract
axes: packed
claims: {packed: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    return attention(q, k, v, causal, sm_scale)
