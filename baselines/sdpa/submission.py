"""Baseline `sdpa`: PyTorch's scaled_dot_product_attention with no backend forced.

Which kernel this is depends on the PyTorch release, the GPU and the shape, so never read a ratio
against `sdpa` without the kernel name beside it; `sdpa_cudnn`, `sdpa_flash`, `sdpa_efficient` and
`sdpa_math` each name one backend. docs/baselines.md says how far apart they are.

Its own causal flag is top-left: with more keys than queries the mask is causal_lower_right. Packed
sequences are called one by one, which SDPA's users do; on a GPU that waits for their lengths.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    Any device, any float dtype. Packed sequences begin at cu_seqlens_q in k as in q.
    """
    if cu_seqlens_q is None:
        return _attention(q, k, v, causal, sm_scale)
    edges = pairwise(cu_seqlens_q.tolist())
    each = ((x[:, :, first:last] for x in (q, k, v)) for first, last in edges)
    return torch.cat([_attention(*one, causal, sm_scale) for one in each], 2)


def _attention(q, k, v, causal, sm_scale):
    shared = q.shape[1] != k.shape[1]
    if causal and q.shape[2] != k.shape[2]:
        mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=sm_scale, enable_gqa=shared
        )
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale, enable_gqa=shared
    )
