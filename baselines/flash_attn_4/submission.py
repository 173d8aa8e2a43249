"""Baseline `flash_attn_4`: flash_attn_func of flash_attn.cute (package flash-attn-4, CuTe DSL).

The package takes and returns (batch, seqlen, heads, headdim). q, k and v go in as transposed views
of the (batch, heads, seqlen, headdim) tensors and the result comes out as one: nothing is copied.
Kernels are compiled on the first call of a headdim and mask, some ten seconds each, and kept under
ATTNBOARD_CACHE, so that the process that is timed loads what the builder compiled.
"""

import functools
import os
from importlib import metadata
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
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
except ImportError as error:
    raise ImportError(
        f"flash_attn_4 needs the package flash-attn-4, module flash_attn.cute ({error}); "
        f"install it: {INSTALL}"
    ) from error

try:
    VERSION = metadata.version("flash-attn-4")
except metadata.PackageNotFoundError:  # on sys.path, not installed: nothing to compare
    VERSION = "unknown"
if VERSION != "unknown" and not VERSION.startswith("4."):
    raise ImportError(
        f"flash_attn_4 needs flash-attn-4 4.x, found {VERSION}; install it: {INSTALL}"
    )


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"flash_attn_4 needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability < (9, 0):
        raise NotImplementedError(
            "flash_attn_4 is taken here for compute capability 9.0 (H100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `flash_attn_2` there."
        )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **packed):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, on a GPU. packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    the library's own words.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 9.0 or newer.
    """
    _check_gpu(q.device)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, S, H, D] views
    if packed:
        q, k, v = q[0], k[0], v[0]  # [tokens, H, D]
        out = flash_attn_varlen_func(q, k, v, softmax_scale=sm_scale, causal=causal, **packed)
    else:
        out = flash_attn_func(q, k, v, softmax_scale=sm_scale, causal=causal)
    out = out[0] if isinstance(out, tuple) else out  # some releases return (out, lse)
    return out.transpose(0, 1)[None] if packed else out.transpose(1, 2)
