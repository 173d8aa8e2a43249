"""Baseline `flash_attn_3_backward_deterministic`: the function under FlashAttention-3's autograd (flash-attention/hopper).

The package takes (batch, seqlen, heads, headdim): views go in and views come out, nothing is copied.
lse is (batch, heads, seqlen) in natural logarithms there too. Sums of dq are taken in a fixed order.
"""

import functools
import math

import torch

INSTALL = (
    "pip install flash-attn-3 --no-deps --index-url https://download.pytorch.org/whl/cu130"
    " (cu126 or cu128 for a torch of that CUDA; torch 2.9 or newer)"
)

try:
    from flash_attn_interface import _flash_attn_backward
except ImportError as error:
    raise ImportError(
        f"flash_attn_3_backward_deterministic needs the module flash_attn_interface ({error}), built with the "
        f"backward; install it: {INSTALL}"
    ) from error


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(
            f"flash_attn_3_backward_deterministic needs a GPU, q is on {device}; run `sdpa_backward` there"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise NotImplementedError(
            "flash_attn_3_backward_deterministic needs compute capability 9.0 (H100, H200); "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `flash_attn_2_backward` there."
        )


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, **packed):
    """(dq, dk, dv), shaped like q, k, v.

    q, o, do (batch, heads, seqlen, headdim), lse without headdim, k and v (batch, kv_heads,
    seqlen_k, headdim). packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.

    Raises:
        NotImplementedError: q is not on a GPU, or on one the package has no kernel for.
    """
    _check_gpu(q.device)
    scale = 1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    q, k, v, o, do = (tensor.transpose(1, 2) for tensor in (q, k, v, o, do))  # [B, S, H, D] views
    names = ("cu_seqlens_q", "cu_seqlens_k", "used", "used", "max_seqlen_q", "max_seqlen_k")
    lengths = [packed.get(name) for name in names]  # of queries and keys; None: all are equal
    if packed:
        q, k, v, o, do, lse = (tensor[0] for tensor in (q, k, v, o, do, lse))  # [tokens, H, D]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    # By position: the mask's flag is called `causal` in older releases and `is_causal` in newer ones.
    _flash_attn_backward(
        do, q, k, v, o, lse, *lengths, dq, dk, dv, scale, causal, deterministic=True
    )
    if packed:
        dq, dk, dv = dq[None], dk[None], dv[None]
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
