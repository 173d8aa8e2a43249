"""Which calls the kernel was judged for; all others are PyTorch's. No tensor is looked into."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from . import judged
from .judged import evidence, part

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
MOST_KEPT = 4096  # refusals of `_known`
MOST_ELEMENTS = (1 << 31) - 1  # of one tensor: beyond, 32-bit offsets of a kernel may overflow


@dataclass(frozen=True)
class Claims:
    """What the manifest says of one entry, in torch's terms."""

    headdims: tuple[int, ...]
    causal: tuple[bool, ...]
    seqlen_multiple: int
    seqlen_min: int
    dtypes: tuple[torch.dtype, ...]
    gqa: bool
    any_seqlens: bool
    capabilities: tuple[tuple[int, int], ...]  # of the GPUs that it was judged on
    needs: tuple[int, int]  # the least, of what nobody judged
    interpreted: bool  # Triton's interpreter runs it on a CPU
    #: (headdim, dtype, grouped heads, sign of keys - queries, GPU) of each judged case; none: all.
    together: tuple[tuple[int, torch.dtype, bool, int, tuple[int, int]], ...] = ()


@functools.cache
def claims(name: str) -> Claims | None:
    """Those of `forward` or `backward`; None where the package has none."""
    told = part(name)
    if told is None:
        return None
    said: dict[str, Any] = told["claims"]
    return Claims(
        headdims=tuple(said["headdims"]),
        causal=(True, False) if said["causal"] == "both" else (said["causal"] == "true",),
        seqlen_multiple=said["seqlen_multiple"],
        seqlen_min=said["seqlen_min"],
        dtypes=tuple(DTYPES[name] for name in said["dtypes"]),
        gqa=bool(said.get("gqa")),
        any_seqlens=said.get("seqlens") == "any",
        capabilities=tuple(_pair(text) for text in told["capabilities"]),
        needs=_pair(told["needs"]["compute_capability"]),
        interpreted=told["language"] == "triton",
        together=tuple((d, DTYPES[t], h, m, _pair(on)) for d, t, h, m, on in told["together"]),
    )


def _pair(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


_known: dict[tuple[Any, ...], str] = {}  # what decides, and the refusal: it is asked in every call


def refusal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float, *, grads: bool
) -> str:
    """Why the kernels do not take this call, or an empty string. `grads`: a backward follows."""
    if type(q) is not torch.Tensor:  # a compiler's, whose sizes may be symbols
        return _refusal(q, k, v, causal, sm_scale, grads)
    key = (
        *(q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device),
        *(causal, sm_scale, grads),
    )
    why = _known.get(key)
    if why is None:
        if len(_known) >= MOST_KEPT:
            _known.clear()
        why = _known[key] = _refusal(q, k, v, causal, sm_scale, grads)
    return why


def _refusal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float, grads: bool
) -> str:
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        return "tensors are not (batch, heads, seqlen, headdim)"
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        return "q, k and v differ in batch or headdim, or k and v in shape"
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        return "q, k and v differ in dtype or device"
    if q.numel() == 0 or k.numel() == 0:
        return "an empty tensor"
    if q.numel() > MOST_ELEMENTS or k.numel() > MOST_ELEMENTS:
        return f"a tensor of more than {MOST_ELEMENTS} elements"
    if not 0 < sm_scale < float("inf"):
        return "sm_scale is not above 0 and finite"
    for name in ("forward", "backward") if grads else ("forward",):
        said = claims(name)
        why = _no_device(said, q.device) or _outside(said, q, k, causal) if said else ""
        if why or (why := judged.missing(name) if said else ""):
            return why
    return ""


def _outside(said: Claims, q: torch.Tensor, k: torch.Tensor, causal: bool) -> str:
    """What of the claims does not hold."""
    if q.shape[3] not in said.headdims:
        return f"headdim {q.shape[3]}, judged for {', '.join(map(str, said.headdims))}"
    if q.dtype not in said.dtypes:
        return f"{q.dtype}, judged for {', '.join(map(str, said.dtypes))}"
    if causal not in said.causal:
        return f"causal={causal}"
    if k.shape[1] != q.shape[1] and (not said.gqa or q.shape[1] % k.shape[1]):
        return "q has other heads than k and v"
    if k.shape[2] != q.shape[2] and (not said.any_seqlens or (causal and q.shape[2] > k.shape[2])):
        return "q has another seqlen than k and v"
    here = _capability(q.device.index) if q.is_cuda else None
    if said.together and not any(
        q.shape[3] == headdim
        and q.dtype == dtype
        and heads == bool(k.shape[1] != q.shape[1])  # of a compiler's sizes it is a symbol
        and more == bool(k.shape[2] > q.shape[2]) - bool(k.shape[2] < q.shape[2])
        and here in (on, None)  # None: interpreted
        for headdim, dtype, heads, more, on in said.together
    ):
        told = f"headdim {q.shape[3]}, {q.dtype}, such heads and lengths"
        return f"{told}, never judged together on such a GPU"
    for seqlen in (q.shape[2], k.shape[2]):
        if seqlen < said.seqlen_min or seqlen % said.seqlen_multiple:
            least, multiple = said.seqlen_min, said.seqlen_multiple
            return f"a seqlen that is not from {least} and a multiple of {multiple}"
    return ""


def _no_device(said: Claims, device: torch.device) -> str:
    if device.type == "cpu":
        interpreted = said.interpreted and os.environ.get("TRITON_INTERPRET") == "1"
        return "" if interpreted else "tensors on a CPU"
    if device.type != "cuda" or torch.version.cuda is None:
        return f"tensors on {device.type}, which is no NVIDIA GPU"
    here = _capability(device.index)
    if here not in said.capabilities if said.capabilities else here < said.needs:
        known = ", ".join(f"{major}.{minor}" for major, minor in said.capabilities or [said.needs])
        why = "judged on" if said.capabilities else "the kernel needs"
        return f"a GPU of compute capability {here[0]}.{here[1]}, {why} {known}"
    return ""


@functools.cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


@functools.cache
def say_once(why: str) -> None:
    """A warning that PyTorch computes instead, the first time for each reason."""
    package = evidence()["package"]
    warnings.warn(f"{package}: {why}: PyTorch's own attention computes this", stacklevel=2)


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> torch.Tensor:
    """The same function by PyTorch; a causal mask ends in the last key of the last query.

    Raises ValueError where a causal mask would leave a query without any key.
    """
    gqa = q.dim() == 4 and bool(q.shape[1] != k.shape[1])  # of a compiler's sizes it is a symbol
    mask = None
    if causal and q.shape[-2] != k.shape[-2]:
        if q.shape[-2] > k.shape[-2]:
            raise ValueError(
                f"{evidence()['package']}: causal with {q.shape[-2]} queries and "
                f"{k.shape[-2]} keys leaves queries without a key; pass causal=False or as many "
                "keys"
            )
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
        mask, causal = seen.tril(k.shape[-2] - q.shape[-2]), False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=sm_scale, enable_gqa=gqa
    )
