"""Baseline `sdpa_fa4_backward`: the backward operator behind SDPA, with FlashAttention-4 activated.

PyTorch 2.11 and newer puts FlashAttention-4 in the place of its own FlashAttention-2 when a program calls
`activate_flash_attention_impl("FA4")`; this process does so when it is loaded.
Kernels are compiled on the first call and kept under ATTNBOARD_CACHE, as `flash_attn_4_backward`'s.
"""

import functools
import inspect
import os
from pathlib import Path

import torch

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
        f"sdpa_fa4_backward needs torch 2.11 or newer, found {torch.__version__}, and flash-attn-4 ({error}); "
        f"install it: {INSTALL}"
    ) from error


def _first_two(forward):
    """`forward`, as PyTorch unpacks what it returns: what is saved for a backward comes of SDPA, too."""

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
        raise NotImplementedError(
            f"sdpa_fa4_backward needs a GPU, q is on {device}; run `sdpa_backward` there"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise NotImplementedError(
            "sdpa_fa4_backward needs compute capability 9.0 (H100, H200); "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_flash_backward` there."
        )


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, **packed):
    """(dq, dk, dv), shaped like q, k, v.

    q, o, do (batch, heads, seqlen, headdim), lse without headdim, k and v (batch, kv_heads,
    seqlen_k, headdim). packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.

    Raises:
        NotImplementedError: q is not on a GPU, or on one the package has no kernel for.
    """
    _check_gpu(q.device)
    unread = torch.empty(0, dtype=torch.int64, device=q.device)
    if not packed:
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            do, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unread, unread,
            scale=sm_scale,
        )  # fmt: skip
    q, k, v, o, do = (x.squeeze(0).transpose(0, 1) for x in (q, k, v, o, do))  # [tokens, H, D]
    grads = torch.ops.aten._flash_attention_backward(
        do, q, k, v, o, lse.squeeze(0), packed["cu_seqlens_q"], packed["cu_seqlens_k"],
        packed["max_seqlen_q"], packed["max_seqlen_k"], 0.0, causal, unread, unread, scale=sm_scale,
    )  # fmt: skip
    return tuple(grad.transpose(0, 1).unsqueeze(0) for grad in grads)
