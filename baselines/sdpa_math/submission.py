"""Baseline `sdpa_math`: scaled_dot_product_attention held to the unfused math backend.

Two matrix products and a softmax, with the whole (seqlen x seqlen) score matrix of every head in
memory, in float32 for half inputs: batch * heads * seqlen^2 * 4 bytes, several times over. The
slow floor of the board; runs on any device.
"""

import torch
import torch.nn.functional as F

_cuda = torch.backends.cuda


def _switch(cudnn, flash, mem_efficient, math):
    _cuda.enable_cudnn_sdp(cudnn)
    _cuda.enable_flash_sdp(flash)
    _cuda.enable_mem_efficient_sdp(mem_efficient)
    _cuda.enable_math_sdp(math)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q, k, v (batch, heads, seqlen, headdim), unfused; any device."""
    before = (
        _cuda.cudnn_sdp_enabled(),
        _cuda.flash_sdp_enabled(),
        _cuda.mem_efficient_sdp_enabled(),
        _cuda.math_sdp_enabled(),
    )
    _switch(False, False, False, True)
    try:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    finally:
        _switch(*before)
