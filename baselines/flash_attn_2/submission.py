"""Baseline `flash_attn_2`: flash_attn_func of the flash-attn package, version 2.

The package takes and returns (batch, seqlen, heads, headdim). q, k and v go in as transposed views
of the (batch, heads, seqlen, headdim) tensors and the result comes out as one: nothing is copied.
"""

import functools

import torch

INSTALL = "pip install flash-attn --no-build-isolation"

try:
    import flash_attn
    from flash_attn import flash_attn_func, flash_attn_varlen_func
except ImportError as error:
    raise ImportError(
        f"flash_attn_2 needs the package flash-attn, version 2 ({error}); install it: {INSTALL}"
    ) from error

VERSION = str(getattr(flash_attn, "__version__", "unknown"))
if not VERSION.startswith("2."):
    raise ImportError(f"flash_attn_2 needs flash-attn 2.x, found {VERSION}; install it: {INSTALL}")


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"flash_attn_2 needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "flash_attn_2 needs compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient` there."
        )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **packed):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, on a GPU. packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    the library's own words.

    Raises:
        NotImplementedError: q is not on a GPU, or on one the package has no kernel for.
    """
    _check_gpu(q.device)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, S, H, D] views
    if packed:
        q, k, v = q[0], k[0], v[0]  # [tokens, H, D]
        out = flash_attn_varlen_func(q, k, v, softmax_scale=sm_scale, causal=causal, **packed)
    else:
        out = flash_attn_func(q, k, v, softmax_scale=sm_scale, causal=causal)
    return out.transpose(0, 1)[None] if packed else out.transpose(1, 2)
