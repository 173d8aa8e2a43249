"""Behind `F.scaled_dot_product_attention`, through PyTorch's registry of flash attentions.

The registry's contract (torch/nn/attention/_registry.py, as _fa3.py there fills it): override the
CUDA kernels of `aten::_scaled_dot_product_flash_attention` and its backward, return a handle whose
`remove()` takes them back. What the kernel does not take goes on to the kernels that were there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from .fit import refusal, say_once
from .judged import evidence
from .ops import GRADIENTS, NAMESPACE, RETURNS_LSE, TRAINING, TRAINS, like, say_lse_unjudged

FORWARD = "_scaled_dot_product_flash_attention"
BACKWARD = "_scaled_dot_product_flash_attention_backward"

_priority: list[int] | None = None  # SDPA's order of backends before enable()


class _Handle:
    """Keeps the overrides alive until `remove`."""

    def __init__(self, library: torch.library.Library) -> None:
        self.library = library

    def remove(self) -> None:
        """PyTorch's own kernels again."""
        self.library._destroy()


def register() -> None:
    """Tell the registry of this package; nothing is activated. Without effect before torch 2.11."""
    add = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if add is not None and RETURNS_LSE:
        add(NAMESPACE, register_fn=_override)


def enable() -> None:
    """From now on `F.scaled_dot_product_attention` uses the kernel where it fits.

    SDPA's flash backend is put before cuDNN's, which Hopper's default prefers.

    Raises RuntimeError where that cannot be: no lse, no GPU, an older torch.
    """
    global _priority  # noqa: PLW0603 - SDPA's order of backends is one for the process
    if not RETURNS_LSE:
        entry = evidence()["forward"]["entry"]
        raise RuntimeError(
            f"{NAMESPACE}: {entry} returns no lse, which SDPA keeps for the backward; "
            f"call {NAMESPACE}.attention instead"
        )
    if not hasattr(torch.nn.attention, "activate_flash_attention_impl"):
        raise RuntimeError(f"{NAMESPACE}: torch {torch.__version__} has no registry; 2.11 has")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise RuntimeError(f"{NAMESPACE}: no NVIDIA GPU here; {NAMESPACE}.attention runs anywhere")
    say_lse_unjudged()
    torch.nn.attention.activate_flash_attention_impl(NAMESPACE)
    if _priority is None:
        _priority = list(torch._C._get_sdp_priority_order())
    first = int(SDPBackend.FLASH_ATTENTION)  # type: ignore[call-overload]
    torch._C._set_sdp_priority_order([first, *(each for each in _priority if each != first)])


def disable() -> None:
    """PyTorch's own kernels and order of backends again, if `enable` was called."""
    global _priority  # noqa: PLW0603 - as above
    if _priority is None:
        return
    if torch.nn.attention.current_flash_attention_impl() == NAMESPACE:
        torch.nn.attention.restore_flash_attention_impl()
    torch._C._set_sdp_priority_order(_priority)
    _priority = None


def _override() -> _Handle:
    """What `activate_flash_attention_impl` calls."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden: it is meant
        library.impl(FORWARD, _forward_over(_kernel(FORWARD)), "CUDA", with_keyset=True)
        if TRAINS:
            library.impl(BACKWARD, _backward_over(_kernel(BACKWARD)), "CUDA", with_keyset=True)
    return _Handle(library)


def _kernel(name: str) -> Callable[..., Any]:
    """The CUDA kernel that is there now, called with a keyset first."""
    call: Callable[..., Any] = torch.library.get_kernel(f"aten::{name}", "CUDA").call_boxed
    return call


def _refused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, dropout_p: float
) -> bool:
    """Whether PyTorch's kernel has to compute it; said once."""
    why = "dropout" if dropout_p else refusal(q, k, v, causal, scale, grads=TRAINS)
    if why:
        say_once(why)
    return bool(why)


def _forward_over(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        keyset: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> Any:
        sm_scale = q.shape[-1] ** -0.5 if scale is None else scale
        if return_debug_mask or _refused(q, k, v, is_causal, sm_scale, dropout_p):
            flags = (dropout_p, is_causal, return_debug_mask)
            return original(keyset, q, k, v, *flags, scale=scale)
        o, lse = TRAINING(q, k, v, is_causal, sm_scale)
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of a dropout that is not there
        offset = torch.zeros((), dtype=torch.uint64, device=q.device)
        mask = torch.empty(0, dtype=q.dtype, device=q.device)
        return o, lse, None, None, q.shape[2], k.shape[2], seed, offset, mask

    return forward


def _backward_over(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(
        keyset: Any,
        do: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        *rest: Any,
        scale: float | None = None,
    ) -> Any:
        dropout_p, is_causal = rest[4:6]  # behind cum_seq_q, cum_seq_k, max_q, max_k
        sm_scale = q.shape[-1] ** -0.5 if scale is None else scale
        if _refused(q, k, v, is_causal, sm_scale, dropout_p):
            return original(keyset, do, q, k, v, o, lse, *rest, scale=scale)
        grads = GRADIENTS(do, q, k, v, o, lse, is_causal, sm_scale)
        return tuple(map(like, grads, (q, k, v)))

    return backward
