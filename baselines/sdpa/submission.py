"""Baseline `sdpa`: PyTorch's scaled_dot_product_attention with no backend forced.

Which kernel this is depends on the PyTorch release, the GPU and the shape, so never read a ratio
against `sdpa` without the kernel name beside it; `sdpa_cudnn`, `sdpa_flash`, `sdpa_efficient` and
`sdpa_math` each name one backend. docs/baselines.md says how far apart they are.
"""

import torch.nn.functional as F


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q, k, v (batch, heads, seqlen, headdim); any device, any float dtype."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
