"""Baseline `xformers`: memory_efficient_attention with the operator xFormers dispatches to.

Which one that is depends on what is installed: FlashAttention-3 or -2 where their packages are
there, else the FlashAttention-2 inside PyTorch, else CUTLASS. Read the kernel name in the record.

The library takes and returns (batch, seqlen, heads, headdim). q, k and v go in as transposed views
of the (batch, heads, seqlen, headdim) tensors and the result comes out as one: nothing is copied.
"""

import ctypes
import functools
import sys
from pathlib import Path

import torch

INSTALL = "pip install xformers"
RUNTIME, RUNTIME_WHEEL = "libcudart.so.12", "nvidia-cuda-runtime-cu12"


def _load_cuda_runtime():
    """The wheel on PyPI is linked with CUDA 12's runtime, which a torch for CUDA 13 does not bring.

    The loader takes a library that is in the process already, whatever its folder.
    """
    if not (torch.version.cuda or "12").startswith("12"):
        for entry in map(Path, sys.path):
            if (entry / "nvidia" / "cuda_runtime" / "lib" / RUNTIME).is_file():
                ctypes.CDLL(str(entry / "nvidia" / "cuda_runtime" / "lib" / RUNTIME))
                return


_load_cuda_runtime()
try:
    import xformers
    from xformers.ops import LowerTriangularMask, memory_efficient_attention
    from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask
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

# xFormers goes on without its library and then finds "no operator": say here what the loader said.
_FAILED = getattr(sys.modules.get("xformers._cpp_lib"), "_cpp_library_load_exception", None)
if _FAILED is not None:
    _SAID = _FAILED.__cause__ or _FAILED
    raise ImportError(
        f"xformers {VERSION} cannot load its CUDA library ({str(_SAID).strip()}) beside torch "
        f"{torch.__version__}; "
        + (
            f"install it: pip install {RUNTIME_WHEEL}"
            if RUNTIME in str(_SAID)
            else f"install one that was built for CUDA {torch.version.cuda}: {INSTALL}"
        )
    ) from _FAILED


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


_CAUSAL, _LOWER_RIGHT = LowerTriangularMask(), LowerTriangularFromBottomRightMask()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, heads, seqlen_k, headdim).

    fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 8.0 or newer.
    """
    _check_gpu(q.device)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, S, H, D] views
    mask = None
    if causal:
        mask = _CAUSAL if q.shape[1] == k.shape[1] else _LOWER_RIGHT
    return memory_efficient_attention(q, k, v, attn_bias=mask, scale=sm_scale).transpose(1, 2)
