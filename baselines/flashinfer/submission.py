"""Baseline `flashinfer`: FlashInfer's batched ragged prefill (its FlashAttention-3 on Hopper).

The library packs sequences as (tokens, heads, headdim). A contiguous (batch, heads, seqlen,
headdim) tensor *is* batch * heads sequences of one head each, so it goes in and out as a view:
nothing is copied. Where heads share k and v, each entry of the batch is one sequence of all heads,
again a view, and a launch of its own. The plan (tile schedule, a host synchronisation) depends on
the shape only and is kept, so it falls into the first call of a shape and outside the timed ones.
Kernels are compiled with nvcc when they are first needed (minutes), into FLASHINFER_WORKSPACE_BASE
or HOME.
"""

import functools
import math

import torch

INSTALL = "pip install flashinfer-python"

try:
    import flashinfer
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper
except ImportError as error:
    raise ImportError(
        f"the baseline flashinfer needs the package flashinfer-python ({error}); "
        f"install it: {INSTALL}"
    ) from error

VERSION = str(getattr(flashinfer, "__version__", "unknown"))
if tuple(int(part) for part in VERSION.split(".")[:2] if part.isdigit()) < (0, 2):
    raise ImportError(
        f"the baseline flashinfer needs flashinfer-python 0.2 or newer, found {VERSION}; "
        f"install it: {INSTALL}"
    )

WORKSPACE_BYTES = 128 << 20  # what the library's documentation advises


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"flashinfer needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "flashinfer is taken here for compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient` there."
        )


@functools.cache
def _workspace(device):
    """Scratch that all plans share: they run one after the other on one stream."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@functools.cache
def _plan(sequences, heads, kv_heads, seqlen, seqlen_k, headdim, dtype, causal, sm_scale, device):
    """A planned wrapper for `sequences` sequences of equal length, its causal mask bottom-right."""
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(_workspace(device), kv_layout="NHD")
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=device)
    wrapper.plan(
        starts * seqlen,
        starts * seqlen_k,
        num_qo_heads=heads,
        num_kv_heads=kv_heads,
        head_dim_qk=headdim,
        causal=causal,
        sm_scale=sm_scale,
        q_data_type=dtype,
    )
    return wrapper


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    Contiguous fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 8.0 or newer.
    """
    _check_gpu(q.device)
    batch, heads, seqlen, headdim = q.shape
    scale = 1.0 / math.sqrt(headdim) if sm_scale is None else sm_scale
    one = (seqlen, k.shape[2], headdim, q.dtype, causal, scale, q.device)
    if k.shape[1] == heads:
        wrapper = _plan(batch * heads, 1, 1, *one)
        return wrapper.run(*(x.view(-1, 1, headdim) for x in (q, k, v))).view(q.shape)
    wrapper, out = _plan(1, heads, k.shape[1], *one), torch.empty_like(q)
    for *inputs, result in zip(q, k, v, out, strict=True):
        wrapper.run(*(x.transpose(0, 1) for x in inputs), out=result.transpose(0, 1))
    return out
