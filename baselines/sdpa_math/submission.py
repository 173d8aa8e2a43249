"""Baseline `sdpa_math`: scaled_dot_product_attention held to the unfused math backend.

Two matrix products and a softmax, with the whole (seqlen x seqlen) score matrix of every head in
memory, in float32 for half inputs: batch * heads * seqlen^2 * 4 bytes, several times over. The
slow floor of the board; runs on any device.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

_cuda = torch.backends.cuda


def _switch(cudnn, flash, mem_efficient, math):
    _cuda.enable_cudnn_sdp(cudnn)
    _cuda.enable_flash_sdp(flash)
    _cuda.enable_mem_efficient_sdp(mem_efficient)
    _cuda.enable_math_sdp(math)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    Unfused; any device.
    """
    shared = q.shape[1] != k.shape[1]
    before = (
        _cuda.cudnn_sdp_enabled(),
        _cuda.flash_sdp_enabled(),
        _cuda.mem_efficient_sdp_enabled(),
        _cuda.math_sdp_enabled(),
    )
    _switch(False, False, False, True)
    try:
        if causal and q.shape[2] != k.shape[2]:  # SDPA's own flag is top-left
            mask = causal_lower_right(q.shape[2], k.shape[2])
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=sm_scale, enable_gqa=shared
            )
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=sm_scale, enable_gqa=shared
        )
    finally:
        _switch(*before)
