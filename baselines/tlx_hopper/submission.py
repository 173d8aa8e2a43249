"""Baseline `tlx_hopper`: the Hopper attention that the package fbtriton brings among TLX's tutorials.

fbtriton is a Triton of its own, under the same name as PyTorch's: install it into a folder and put
that folder first on PYTHONPATH, for a run without other Triton kernels. Its kernel is warp-specialized,
persistent and without a mask; blocks of 128 rows must not reach into the next head.
"""

import functools
import importlib
import math

import torch

INSTALL = "pip install --no-deps --target ../fbtriton fbtriton==3.7.4"
KERNEL = "triton.language.extra.tlx.tutorials.hopper_fa_ws_pipelined_pingpong_persistent"

try:
    import triton
    import triton.language.extra.tlx  # noqa: F401 - what no other Triton has
except ImportError as error:
    raise ImportError(
        f"tlx_hopper needs fbtriton in the place of triton ({error}); install it: {INSTALL}; "
        "then put the folder first on PYTHONPATH"
    ) from error


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"tlx_hopper needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise NotImplementedError(
            "tlx_hopper needs compute capability 9.0 (H100, H200); "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `flash_attn_2` there."
        )


@functools.cache
def _kernel():
    """Imported at the first call: its module asks for a GPU at once."""
    return importlib.import_module(KERNEL).attention


def custom_attention_forward(q, k, v, causal=False, sm_scale=None):
    """Attention of q, k and v (batch, heads, seqlen, headdim), contiguous, without a mask.

    fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU, or on one the kernel is not for, or a mask is wanted.
    """
    _check_gpu(q.device)
    if causal:
        raise NotImplementedError("tlx_hopper has no mask; run `flash_attn_3`")
    scale = 1.0 / math.sqrt(q.shape[3]) if sm_scale is None else sm_scale
    return _kernel()(q, k, v, scale)
