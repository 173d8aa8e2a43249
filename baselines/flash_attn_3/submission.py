"""Baseline `flash_attn_3`: flash_attn_func of FlashAttention-3 (flash-attention/hopper, sm_90a).

The package takes and returns (batch, seqlen, heads, headdim). q, k and v go in as transposed views
of the (batch, heads, seqlen, headdim) tensors and the result comes out as one: nothing is copied.
Giving it (batch, heads, seqlen, headdim) runs without an error and attends across heads.
"""

import functools
from importlib import metadata

import torch

INSTALL = (
    "pip install flash-attn-3 --no-deps --index-url https://download.pytorch.org/whl/cu130"
    " (cu126 or cu128 for a torch of that CUDA; torch 2.9 or newer)"
)

try:
    from flash_attn_interface import flash_attn_func, flash_attn_varlen_func
except ImportError as error:
    raise ImportError(
        f"flash_attn_3 needs the module flash_attn_interface ({error}); install it: {INSTALL}"
    ) from error

try:
    VERSION = metadata.version("flash_attn_3")
except metadata.PackageNotFoundError:  # on sys.path, not installed: nothing to compare
    VERSION = "unknown"
if VERSION != "unknown" and not VERSION.startswith("3."):
    raise ImportError(
        f"flash_attn_3 needs flash_attn_3 3.x, found {VERSION}; install it: {INSTALL}"
    )


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"flash_attn_3 needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise NotImplementedError(
            "flash_attn_3 needs compute capability 9.0 (H100, H200); "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `flash_attn_2` or `flash_attn_4` there."
        )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **packed):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, on an H100 or H200. packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    the library's own words.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 9.0.
    """
    _check_gpu(q.device)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, S, H, D] views
    if packed:
        q, k, v = q[0], k[0], v[0]  # [tokens, H, D]
        out = flash_attn_varlen_func(q, k, v, softmax_scale=sm_scale, causal=causal, **packed)
    else:
        out = flash_attn_func(q, k, v, softmax_scale=sm_scale, causal=causal)
    out = out[0] if isinstance(out, tuple) else out  # early releases return (out, lse)
    return out.transpose(0, 1)[None] if packed else out.transpose(1, 2)
