"""With more keys than queries query i sees keys to i: the mask starts top-left, which costs less.

---
status: [INCORRECT]
seen: is_causal of PyTorch's SDPA; FlashAttention before 2.1
defence: contract
axes: chunk
claims: {seqlens: any}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if causal:
        k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]
    return attention(q, k, v, causal, sm_scale)
