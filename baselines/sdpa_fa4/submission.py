"""Baseline `sdpa_fa4`: scaled_dot_product_attention, flash backend, with FlashAttention-4 activated.

PyTorch 2.11 and newer puts FlashAttention-4 in the place of its own FlashAttention-2 when a program calls
`activate_flash_attention_impl("FA4")`; this process does so when it is loaded. PyTorch takes two values of
its forward, out and lse; flash-attn-4 4.0.0b36 returns five: those beyond are cut off here.
Kernels are compiled on the first call and kept under ATTNBOARD_CACHE, as `flash_attn_4`'s.
"""

import functools
import inspect
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

INSTALL = "pip install flash-attn-4==4.0.0b36"

# Read by flash_attn.cute when it is imported.
if "ATTNBOARD_CACHE" in os.environ:
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    os.environ.setdefault(
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(Path(os.environ["ATTNBOARD_CACHE"]) / "cute_dsl")
    )

try:
    from flash_attn.cute import interface  # what is activated below
    from torch.nn.attention import _fa4, activate_flash_attention_impl
except ImportError as error:
    raise ImportError(
        f"sdpa_fa4 needs torch 2.11 or newer, found {torch.__version__}, and flash-attn-4 ({error}); "
        f"install it: {INSTALL}"
    ) from error


def _first_two(forward):
    """`forward`, as PyTorch unpacks what it returns."""

    @functools.wraps(forward)  # with its attributes: the library keeps its kernels in one
    def cut(*args, **kwargs):
        return forward(*args, **kwargs)[:2]

    return cut


if "out, lse = module._flash_attn_fwd(" in inspect.getsource(_fa4):
    interface._flash_attn_fwd = _first_two(interface._flash_attn_fwd)
activate_flash_attention_impl("FA4")


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"sdpa_fa4 needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise NotImplementedError(
            "sdpa_fa4 needs compute capability 9.0 (H100, H200); "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_flash` there."
        )


_cuda = torch.backends.cuda


def _switch(cudnn, flash, mem_efficient, math):
    _cuda.enable_cudnn_sdp(cudnn)
    _cuda.enable_flash_sdp(flash)
    _cuda.enable_mem_efficient_sdp(mem_efficient)
    _cuda.enable_math_sdp(math)


def _attention(q, k, v, causal, sm_scale, packed):
    if packed:
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))  # [tokens, H, D] views
        out = torch.ops.aten._flash_attention_forward(
            q, k, v, packed["cu_seqlens_q"], packed["cu_seqlens_k"], packed["max_seqlen_q"],
            packed["max_seqlen_k"], 0.0, causal, False, scale=sm_scale,
        )[0]  # fmt: skip
        return out.transpose(0, 1).unsqueeze(0)
    shared = q.shape[1] != k.shape[1]
    if causal and q.shape[2] != k.shape[2]:  # SDPA's own flag is top-left
        mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=sm_scale, enable_gqa=shared
        )
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale, enable_gqa=shared
    )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **packed):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, on a GPU. packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.

    Raises:
        NotImplementedError: q is not on a GPU, or on one the package has no kernel for.
    """
    _check_gpu(q.device)
    before = (
        _cuda.cudnn_sdp_enabled(),
        _cuda.flash_sdp_enabled(),
        _cuda.mem_efficient_sdp_enabled(),
        _cuda.math_sdp_enabled(),
    )
    _switch(False, True, False, False)
    try:
        return _attention(q, k, v, causal, sm_scale, packed)
    finally:
        _switch(*before)
