"""Wrong on purpose: a (batch, seqlen, heads, headdim) kernel is fed (batch, heads, seqlen, headdim).

The mistake once made with FlashAttention-3 in a public benchmark. Shapes and dtypes are right and
nothing fails; attention runs across the heads of one token, which is far less work, so the row would
also be the fastest of the board.
"""

import torch.nn.functional as F


def _bshd_attention(q, k, v, causal, sm_scale):
    """Stand-in for a library call that takes and returns (batch, seqlen, heads, headdim)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    return out.transpose(1, 2)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention over the wrong axis of q, k, v (batch, heads, seqlen, headdim)."""
    return _bshd_attention(q, k, v, causal, sm_scale)
