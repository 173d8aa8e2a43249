"""Custom operators of torch around the judged functions.

    attention(q, k, v, causal, sm_scale) -> o        chooses, falls back, has gradients; calls
    inference(q, k, v, causal, sm_scale) -> o        the forward
    training(q, k, v, causal, sm_scale) -> o, lse    the forward, with lse if a backward takes it
    gradients(do, q, k, v, o, lse, causal, sm_scale) -> dq, dk, dv

q, o [batch, heads, seqlen_q, headdim], k, v [batch, kv_heads, seqlen_k, headdim], lse float32
[batch, heads, seqlen_q]. o lies in memory as `torch.empty_like(q)` does, and so do gradients if the
backward takes any strides; else they are contiguous.
Compilers and CUDA graphs see the lower three, which have no autograd: it is in `attention`. Each is
a function, which makes the GPU of its tensors the current one and which compiled code calls, and
the operator around it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

from . import judged
from .compiled import call_as_function
from .fit import refusal, say_once, sdpa
from .judged import evidence, part

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Some = TypeVar("Some")
NAMESPACE: str = evidence()["package"]
TRAINS = part("backward") is not None  # else PyTorch's backward computes everything again
RETURNS_LSE: bool = evidence()["forward"]["returns_lse"]  # of each row, on request
LSE_JUDGED: bool = evidence()["forward"]["lse_judged"]
STRIDED: bool = evidence()["forward"]["strided"]  # else the forward is given copies
BACKWARD_STRIDED: bool = TRAINS and evidence()["backward"]["strided"]
ALIGNMENT_BYTES = 16  # of tensors that TMA or wide loads read
#: Which dispatch keys a plain call includes and excludes.
EAGER = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
QKV = "Tensor q, Tensor k, Tensor v, bool causal, float sm_scale"
SCHEMAS = {
    "attention": "(Tensor q, Tensor k, Tensor v, bool causal=True, float? sm_scale=None) -> Tensor",
    "inference": f"({QKV}) -> Tensor",
    "training": f"({QKV}) -> (Tensor, Tensor)",
    "gradients": "(Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, bool causal, "
    "float sm_scale) -> (Tensor, Tensor, Tensor)",
}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = True,
    sm_scale: float | None = None,
) -> torch.Tensor:
    """softmax(q kᵀ · sm_scale) v of each head.

    With `causal` query i sees the keys up to i + seqlen_k - seqlen_q.

    q [batch, heads, seqlen_q, headdim], k, v [batch, kv_heads, seqlen_k, headdim], any strides ->
    as q. sm_scale defaults to headdim ** -0.5. Under autocast the inputs are cast, as SDPA's are.

    Raises ValueError where a causal mask leaves a query without any key.
    """
    if torch.compiler.is_dynamo_compiling():
        o: torch.Tensor = ATTENTION(q, k, v, causal, sm_scale)
        return o
    return _attention(q, k, v, causal, sm_scale)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = True,  # the dispatcher leaves out what is as the schema has it
    sm_scale: float | None = None,
) -> torch.Tensor:
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (t.to(dtype) if t.dtype is not torch.float64 else t for t in (q, k, v))
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    grads = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    why = refusal(q, k, v, causal, scale, grads=grads)
    if why:
        say_once(why)
        return sdpa(q, k, v, causal, scale)
    if grads:  # what is copied here is not copied again in the backward
        say_lse_unjudged()
        tensors = (q, k, v) if STRIDED else _dense(q, k, v)
        o: torch.Tensor = _Attention.apply(*tensors, causal, scale)[0]
        return o
    result: torch.Tensor = INFERENCE(q, k, v, causal, scale)
    return result


@functools.cache
def say_lse_unjudged() -> None:
    """Warn, once, who is about to use what no judge has looked at."""
    if RETURNS_LSE and not LSE_JUDGED:
        said = f"nobody has judged what {evidence()['forward']['entry']} gives with return_lse=True"
        told = "which training calls: compare its gradients with PyTorch's"
        warnings.warn(f"{NAMESPACE}: {said}, {told}", stacklevel=2)


class _Attention(torch.autograd.Function):
    """The pair, or the forward with PyTorch's backward; a second derivative is refused.

    Without `setup_context`, for which torch binds the arguments to a signature in each call.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        q, k, v, ctx.causal, ctx.scale = inputs
        o, lse = TRAINING(*inputs)
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(q, k, v, o, lse)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return (*GRADIENTS(grads[0], *ctx.saved_tensors, ctx.causal, ctx.scale), None, None)


# ------------------------------------------------------------------------------- what runs
#
# Called as the judge called it: tensors by place, the rest by name.


def _dense(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, contiguous."""
    return tuple(map(torch.Tensor.contiguous, tensors))


def _ready(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, contiguous and aligned: what the judge hands over."""
    return tuple(t.clone() if t.data_ptr() % ALIGNMENT_BYTES else t for t in _dense(*tensors))


def like(result: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """`result` with the strides of empty_like(model)."""
    if model.is_contiguous() and result.is_contiguous():
        return result
    wanted = torch.empty_like(model)
    return result if result.stride() == wanted.stride() else wanted.copy_(result)


def _as_judged(run: Callable[..., Some]) -> Callable[..., Some]:
    """`run` as the judge calls it: on the GPU of its first tensor, without autocast.

    Triton launches on the current GPU; a kernel's own products of float32 stay such.
    """

    def as_judged(first: torch.Tensor, *rest: Any) -> Some:
        if torch.is_autocast_enabled(first.device.type):
            with torch.autocast(first.device.type, enabled=False):
                return as_judged(first, *rest)
        if first.is_cuda and first.get_device() != torch.cuda.current_device():
            with torch.cuda.device(first.device):
                return run(first, *rest)
        return run(first, *rest)

    return as_judged


def _inference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> torch.Tensor:
    tensors = (q, k, v) if STRIDED else _ready(q, k, v)
    return like(judged.function("forward")(*tensors, causal=causal, sm_scale=sm_scale), q)


def _training(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if not RETURNS_LSE:
        return _inference(q, k, v, causal, sm_scale), _no_lse(q)
    forward = judged.function("forward")
    tensors = (q, k, v) if STRIDED else _ready(q, k, v)
    o, lse = forward(*tensors, causal=causal, sm_scale=sm_scale, return_lse=True)
    return like(o, q), lse


def _gradients(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    sm_scale: float,
) -> Three:
    if not TRAINS:
        return _recomputed(do, q, k, v, causal, sm_scale)
    tensors = (q, k, v, o, lse, do) if BACKWARD_STRIDED else _ready(q, k, v, o, lse, do)
    grads = judged.function("backward")(*tensors, causal=causal, sm_scale=sm_scale)
    dq, dk, dv = map(like, grads, (q, k, v)) if BACKWARD_STRIDED else _dense(*grads)
    return dq, dk, dv


def _recomputed(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float,
) -> Three:
    """PyTorch's gradients, its forward computed again for them.

    An operator runs below autograd: `EAGER` brings it back for what is computed here.
    """
    with torch._C._ForceDispatchKeyGuard(*EAGER), torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        o = sdpa(leaves[0], leaves[1], leaves[2], causal, sm_scale)
        dq, dk, dv = torch.autograd.grad(o, leaves, do)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


def _no_lse(q: torch.Tensor) -> torch.Tensor:
    return q.new_empty(0, dtype=torch.float32)


# ------------------------------------------------------------------------------- what compilers see


def _inference_fake(q: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(q)


def _training_fake(q: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if RETURNS_LSE else _no_lse(q)
    return torch.empty_like(q), lse


def _gradients_fake(_: torch.Tensor, *inputs: Any) -> Three:
    order = torch.preserve_format if BACKWARD_STRIDED else torch.contiguous_format
    dq, dk, dv = (torch.empty_like(t, memory_format=order) for t in inputs[:3])
    return dq, dk, dv


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # and what traces
    "inference": (_inference, _inference_fake),
    "training": (_training, _training_fake),
    "gradients": (_gradients, _gradients_fake),
}
# Compilers hand over tensors with the strides that they have in eager mode.
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
for _name, _schema in SCHEMAS.items():
    LIBRARY.define(_name + _schema, tags=TAGS)
LIBRARY.impl("attention", _attention, "CompositeImplicitAutograd")
_ops = getattr(torch.ops, NAMESPACE)


def _traced(name: str, fake: Callable[..., Some]) -> Callable[..., Some]:
    """`fake`; a compiler that asks for it is told what to call."""
    functions = f"torch.ops.{NAMESPACE}"

    def traced(*args: Any) -> Some:
        call_as_function(getattr(_ops, name).default, f"{functions}.{name}_function")
        return fake(*args)

    return traced


for _name, (_run, _fake) in FUNCTIONS.items():
    _function = _as_judged(_run)
    for _key in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _function, _key)
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _traced(_name, _fake), lib=LIBRARY)
    setattr(_ops, f"{_name}_function", _function)

ATTENTION, INFERENCE = _ops.attention.default, _ops.inference.default
TRAINING, GRADIENTS = _ops.training.default, _ops.gradients.default
