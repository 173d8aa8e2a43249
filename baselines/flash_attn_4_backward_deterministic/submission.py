"""Baseline `flash_attn_4_backward_deterministic`: the function under FlashAttention-4's autograd (flash_attn.cute).

The package takes (batch, seqlen, heads, headdim): views go in and views come out, nothing is copied.
lse is (batch, heads, seqlen) in natural logarithms there too. Sums of dq are taken in a fixed order.
Kernels are compiled on the first call of a headdim and mask, some ten seconds each, and kept under
ATTNBOARD_CACHE, so that the process that is timed loads what the builder compiled.
"""

import functools
import math
import os
from pathlib import Path

import torch

INSTALL = "pip install flash-attn-4==4.0.0b36"

# Read by flash_attn.cute when it is imported.
if "ATTNBOARD_CACHE" in os.environ:
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault(
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
        str(Path(os.environ["ATTNBOARD_CACHE"]) / "cute_dsl"),
    )

try:
    from flash_attn.cute.interface import _flash_attn_bwd
except ImportError as error:
    raise ImportError(
        f"flash_attn_4_backward_deterministic needs the package flash-attn-4, module flash_attn.cute ({error}); "
        f"install it: {INSTALL}"
    ) from error


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(
            f"flash_attn_4_backward_deterministic needs a GPU, q is on {device}; run `sdpa_backward` there"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (9, 0):
        raise NotImplementedError(
            "flash_attn_4_backward_deterministic needs compute capability 9.0 (H100) or newer; "
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
    if packed:
        q, k, v, o, do, lse = (tensor[0] for tensor in (q, k, v, o, do, lse))  # [tokens, H, D]
    options = {"softmax_scale": scale, "causal": causal, "deterministic": True, **packed}
    dq, dk, dv = _flash_attn_bwd(q, k, v, o, do, lse, **options)[:3]
    if packed:
        dq, dk, dv = dq[None], dk[None], dv[None]
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
