"""Wrong on purpose: the causal mask is one key too wide, as `tril(diagonal=1)` makes it.

Row i attends to keys 0 .. i+1. Late rows hardly move (one key among thousands), the first rows move
a lot: a check that samples rows can miss it. Without `causal` it is correct.
"""

import torch
import torch.nn.functional as F


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q, k, v (batch, heads, seqlen, headdim) with the mask off by one."""
    if not causal:
        return F.scaled_dot_product_attention(q, k, v, scale=sm_scale)
    seqlen = q.shape[-2]
    mask = torch.ones(seqlen, seqlen, dtype=torch.bool, device=q.device).tril(diagonal=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale)
