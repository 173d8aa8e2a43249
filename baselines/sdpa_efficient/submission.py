"""Baseline `sdpa_efficient`: scaled_dot_product_attention held to one backend.

The backend is the memory-efficient CUTLASS kernel that came from xFormers, compiled into PyTorch.

The four backend switches are set before the call and put back after it: 2 us of host time, where
`torch.nn.attention.sdpa_kernel` takes 20 us, which an idle GPU would have to wait for.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

_cuda = torch.backends.cuda
REFUSALS = ("No available kernel", "Invalid backend")  # what PyTorch says, by release


def _switch(cudnn, flash, mem_efficient, math):
    _cuda.enable_cudnn_sdp(cudnn)
    _cuda.enable_flash_sdp(flash)
    _cuda.enable_mem_efficient_sdp(mem_efficient)
    _cuda.enable_math_sdp(math)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, heads, seqlen_k, headdim).

    On a GPU, by this one backend, which takes no shared heads.

    Raises:
        NotImplementedError: q is not on a GPU, or the backend has no kernel for this case.
    """
    if not q.is_cuda:
        raise NotImplementedError(
            f"sdpa_efficient needs a GPU, q is on {q.device}; on a CPU run `sdpa` or `sdpa_math`"
        )
    before = (
        _cuda.cudnn_sdp_enabled(),
        _cuda.flash_sdp_enabled(),
        _cuda.mem_efficient_sdp_enabled(),
        _cuda.math_sdp_enabled(),
    )
    _switch(False, False, True, False)
    try:
        if causal and q.shape[2] != k.shape[2]:  # SDPA's own flag is top-left
            mask = causal_lower_right(q.shape[2], k.shape[2])
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    except RuntimeError as error:
        if not any(words in str(error) for words in REFUSALS):
            raise
        raise NotImplementedError(
            f"sdpa_efficient: torch {torch.__version__} has no kernel of this backend for "
            f"{tuple(q.shape)} {q.dtype} on {torch.cuda.get_device_name(q.device)}; "
            "it needs a GPU of compute capability 5.0 or newer. "
            "Run `sdpa` to let PyTorch choose."
        ) from error
    finally:
        _switch(*before)
