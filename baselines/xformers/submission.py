"""Baseline `xformers`: memory_efficient_attention with the operator xFormers dispatches to.

Which one that is depends on what is installed: FlashAttention-3 or -2 where their packages are
there, else the FlashAttention-2 inside PyTorch, else CUTLASS. Read the kernel name in the record.

The library takes and returns (batch, seqlen, heads, headdim). q, k and v go in as transposed views
of the (batch, heads, seqlen, headdim) tensors and the result comes out as one: nothing is copied.
"""

import functools

import torch

INSTALL = "pip install xformers"

try:
    import xformers
    from xformers.ops import LowerTriangularMask, memory_efficient_attention
except ImportError as error:
    if (error.name or "").startswith("flash_attn"):  # flash-attn-4 alone: flash_attn.cute, no more
        raise ImportError(
            "xformers takes the flash_attn folder of flash-attn-4 for FlashAttention-2 and fails on "
            f"it ({error}); put flash-attn 2 beside it: pip install flash-attn --no-build-isolation"
        ) from error
    raise ImportError(
        f"the baseline xformers needs the package xformers ({error}); install it: {INSTALL}"
    ) from error

VERSION = str(getattr(xformers, "__version__", "unknown"))
if not VERSION.startswith("0.0.") or int(VERSION.split(".")[2].split("+", maxsplit=1)[0]) < 23:
    raise ImportError(
        f"the baseline xformers needs xformers 0.0.23 or newer, found {VERSION}; "
        f"install it: {INSTALL}"
    )


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"xformers needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "xformers is taken here for compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient` there."
        )


_CAUSAL = LowerTriangularMask()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q, k, v (batch, heads, seqlen, headdim), fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 8.0 or newer.
    """
    _check_gpu(q.device)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, S, H, D] views
    mask = _CAUSAL if causal else None
    return memory_efficient_attention(q, k, v, attn_bias=mask, scale=sm_scale).transpose(1, 2)
