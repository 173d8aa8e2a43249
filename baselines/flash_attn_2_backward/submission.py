"""Baseline `flash_attn_2_backward`: the function under flash_attn_func's autograd, flash-attn version 2.

The package takes (batch, seqlen, heads, headdim): views go in and views come out, nothing is copied.
lse is (batch, heads, seqlen) in natural logarithms there too.
"""

import functools
import math

import torch

INSTALL = "pip install flash-attn --no-build-isolation"

try:
    import flash_attn
    from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_varlen_backward
except ImportError as error:
    raise ImportError(
        f"flash_attn_2_backward needs the package flash-attn, 2.7 or newer ({error}); "
        f"install it: {INSTALL}"
    ) from error

VERSION = str(getattr(flash_attn, "__version__", "unknown"))
if not VERSION.startswith("2."):
    raise ImportError(
        f"flash_attn_2_backward needs flash-attn 2.x, found {VERSION}; install it: {INSTALL}"
    )


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(
            f"flash_attn_2_backward needs a GPU, q is on {device}; run `sdpa_backward` there"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "flash_attn_2_backward needs compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient_backward` there."
        )


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, **packed):
    """(dq, dk, dv), shaped like q, k, v.

    q, o, do (batch, heads, seqlen, headdim), lse without headdim, k and v (batch, kv_heads,
    seqlen_k, headdim). packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.

    Raises:
        NotImplementedError: q is not on a GPU, or on one the package has no kernel for.
    """
    _check_gpu(q.device)
    q, k, v, o, do = (tensor.transpose(1, 2) for tensor in (q, k, v, o, do))  # [B, S, H, D] views
    if packed:
        q, k, v, o, do, lse = (tensor[0] for tensor in (q, k, v, o, do, lse))  # [tokens, H, D]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    backward = _flash_attn_varlen_backward if packed else _flash_attn_backward
    backward(
        do, q, k, v, o, lse, dq, dk, dv,
        **packed,
        dropout_p=0.0,
        softmax_scale=1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale,
        causal=causal,
        window_size_left=-1,
        window_size_right=-1,
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
    )  # fmt: skip
    if packed:
        dq, dk, dv = dq[None], dk[None], dv[None]
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
