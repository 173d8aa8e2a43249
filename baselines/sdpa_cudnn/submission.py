"""Baseline `sdpa_cudnn`: scaled_dot_product_attention held to one backend.

The backend is cuDNN's fused attention, the kernel that plain SDPA picks on an H200 with torch 2.11.

SDPA's causal flag is top-left. With more keys than queries the mask goes in as a bias, made once for
each shape: through PyTorch that is the only way to cuDNN's kernel, and makes it slower.

The four backend switches are set before the call and put back after it: 2 us of host time, where
`torch.nn.attention.sdpa_kernel` takes 20 us, which an idle GPU would have to wait for.
"""

import functools
import math

import torch
import torch.nn.functional as F

_cuda = torch.backends.cuda
#: What PyTorch says, by release; of packed sequences cuDNN's own words.
REFUSALS = ("No available kernel", "Invalid backend", "mha_graph", "cudnn_frontend")


def _switch(cudnn, flash, mem_efficient, math):
    _cuda.enable_cudnn_sdp(cudnn)
    _cuda.enable_flash_sdp(flash)
    _cuda.enable_mem_efficient_sdp(mem_efficient)
    _cuda.enable_math_sdp(math)


@functools.cache
def _lower_right(seqlen, seqlen_k, dtype, device):
    """The bottom-right causal mask as a bias [seqlen, seqlen_k]: 0 where a key is seen."""
    hidden = torch.ones(seqlen, seqlen_k, dtype=torch.bool, device=device)
    hidden = hidden.triu_(1 + seqlen_k - seqlen)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -math.inf)


def _attention(q, k, v, causal, sm_scale, packed):
    if packed:
        q, k, v = (
            x.squeeze(0).transpose(0, 1) for x in (q, k, v)
        )  # [tokens, heads, headdim] views
        out = torch.ops.aten._cudnn_attention_forward(
            q, k, v, None, packed["cu_seqlens_q"], packed["cu_seqlens_k"], packed["max_seqlen_q"],
            packed["max_seqlen_k"], True, 0.0, causal, False, scale=sm_scale,
        )[0]  # fmt: skip
        return out.transpose(0, 1).unsqueeze(0)
    shared = q.shape[1] != k.shape[1]
    if causal and q.shape[2] != k.shape[2]:
        bias = _lower_right(q.shape[2], k.shape[2], q.dtype, q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, scale=sm_scale, enable_gqa=shared
        )
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale, enable_gqa=shared
    )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **packed):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    On a GPU, by this one backend. packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.

    Raises:
        NotImplementedError: q is not on a GPU, or the backend has no kernel for this case.
    """
    if not q.is_cuda:
        raise NotImplementedError(
            f"sdpa_cudnn needs a GPU, q is on {q.device}; on a CPU run `sdpa` or `sdpa_math`"
        )
    before = (
        _cuda.cudnn_sdp_enabled(),
        _cuda.flash_sdp_enabled(),
        _cuda.mem_efficient_sdp_enabled(),
        _cuda.math_sdp_enabled(),
    )
    _switch(True, False, False, False)
    try:
        return _attention(q, k, v, causal, sm_scale, packed)
    except RuntimeError as error:
        if not any(words in str(error) for words in REFUSALS):
            raise
        raise NotImplementedError(
            f"sdpa_cudnn: torch {torch.__version__} has no kernel of this backend for "
            f"{tuple(q.shape)} {q.dtype} on {torch.cuda.get_device_name(q.device)}; "
            "cuDNN takes fp16 and bf16 on compute capability 8.0 and newer. "
            "Run `sdpa` to let PyTorch choose."
        ) from error
    finally:
        _switch(*before)
