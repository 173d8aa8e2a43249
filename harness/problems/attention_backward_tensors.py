"""Inputs and references of attention backward. Only trusted processes import this for verdicts.

q, o, do and dq are (batch, heads, seqlen, headdim), k, v, dk and dv (batch, kv_heads, seqlen_k,
headdim), lse (batch, heads, seqlen).

Where o and lse come from: PyTorch's own flash forward, run by the judge. That is what training
hands to a backward (an o with the rounding of a real fp16 kernel), and costs one forward a call,
where the float64 definition costs some 30. The references look at neither: `exact` and `contract`
start again from q, k, v and do, so an o or lse that were wrong would fail everybody, the trusted
baseline first.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from harness.problems import attention_forward_tensors as forward
from harness.problems.base import Kwargs
from harness.schema import Case

CHUNK_ELEMENTS = 1 << 25  # float64 scores of one piece; five such tensors live at once: 1.3 GiB

Pair = tuple[Tensor, Tensor]
Quad = tuple[Tensor, Tensor, Tensor, Tensor]


def make_inputs(
    case: Case, distribution: str, generator: torch.Generator, device: torch.device, kwargs: Kwargs
) -> tuple[Tensor, ...]:
    """Draw q, k, v, do of one call and run the forward; returns q, k, v, o, lse, do."""
    shapes = (case.shape, case.kv_shape, case.kv_shape, case.shape)
    drawn = forward.draw(case, shapes, generator, device)
    each = []
    for one in forward.sequences(drawn, 4):
        q, k, v, do = DISTRIBUTIONS[distribution](cast(Quad, one), generator)
        o, lse = _forward(q, k, v, bool(kwargs["causal"]), forward.scale_of(kwargs))
        each.append((q, k, v, o, lse.float(), do))
    placed = (forward.joined(parts).contiguous() for parts in zip(*each, strict=True))
    return *placed, *drawn[4:], *(tensor.clone() for tensor in drawn[4:])


def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """O and lse by PyTorch's flash operator.

    Its `causal` is bottom-right on a GPU and top-left on a CPU.
    """
    aten = torch.ops.aten
    if (group := q.shape[1] // k.shape[1]) > 1:
        k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    if q.is_cuda:
        flash = aten._scaled_dot_product_flash_attention
        return cast(Pair, flash(q, k, v, 0.0, causal, scale=scale)[:2])
    mask, (seqlen, seqlen_k) = None, (q.shape[2], k.shape[2])
    if causal and seqlen != seqlen_k:
        hidden = torch.ones(seqlen, seqlen_k, dtype=torch.bool).triu(1 + seqlen_k - seqlen)
        mask, causal = torch.zeros(seqlen, seqlen_k, dtype=q.dtype), False
        mask.masked_fill_(hidden, -math.inf)
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    return cast(Pair, flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale))


# --------------------------------------------------------------------------- what inputs look like


def _like_forward(name: str, tensors: Quad, generator: torch.Generator) -> Quad:
    """The forward problem's q, k, v beside a normal do."""
    q, k, v, do = tensors
    return (*forward.DISTRIBUTIONS[name](q, k, v, generator), do)


def _soft_needle(tensors: Quad, generator: torch.Generator) -> Quad:
    """One early key takes a quarter of every row's weight and more: kills skipped and sampled keys.

    Not all of it: where one key takes all, dq and dk are zero and what is left is rounding. And q
    keeps its own direction beside the needle's: if all rows point one way, the needle's dk sums an
    error that they share (o's rounding, through delta), and one honest draw in a hundred is twice
    as far off as the others.
    """
    q, k, v, do = tensors
    seqlen, headdim = k.shape[2:]
    where = torch.randint(0, max(1, seqlen // 8), (1,), generator=generator, device=k.device)
    direction = torch.randn(headdim, generator=generator, device=k.device, dtype=torch.float32)
    direction = direction / direction.norm() * math.sqrt(headdim)
    key = (direction * (math.log(seqlen) / math.sqrt(headdim))).to(k.dtype)
    k = k.index_copy(2, where, key.expand(*k.shape[:2], 1, -1))
    return (q.float() + direction).to(q.dtype), k, v, do


def _spiky_do(tensors: Quad, _: torch.Generator) -> Quad:
    """Every 16th row of do is 16 times the others: kills one scale for a whole tensor or tile."""
    q, k, v, do = tensors
    do = do.clone()
    do[:, :, ::16] *= 16
    return q, k, v, do


#: Not here: the forward's hard needle and rising logits. Their dq and dk nearly cancel, so that an
#: honest fp16 kernel is as far from float64 as a wrong one (2.5e-2 on the worst row, simulated).
ALIKE = ("normal", "offset_v", "tiny_scale")
DISTRIBUTIONS: dict[str, Callable[[Quad, torch.Generator], Quad]] = {
    **{name: partial(_like_forward, name) for name in ALIKE},
    "large_logits": lambda tensors, _: (tensors[0] * 8, *tensors[1:]),  # lse is given: no maximum
    "soft_needle": _soft_needle,
    "spiky_do": _spiky_do,
}


# --------------------------------------------------------------------------- what must come out


def contract(inputs: Sequence[Tensor], kwargs: Kwargs) -> tuple[Tensor, ...]:
    """What PyTorch's autograd of SDPA gives for dq, dk, dv, by FlashAttention-2 if that can."""
    each = [_by_autograd(one, kwargs) for one in forward.sequences(inputs, 6)]
    return tuple(forward.joined(parts).contiguous() for parts in zip(*each, strict=True))


def _by_autograd(one: tuple[Tensor, ...], kwargs: Kwargs) -> tuple[Tensor, ...]:
    q, k, v, _, _, do = one
    q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
    # not cuDNN: its backward does not take every shape, and the bar should be one kernel
    with torch.enable_grad(), sdpa_kernel(forward.TRUSTED):
        out = forward.sdpa(q, k, v, bool(kwargs["causal"]), forward.scale_of(kwargs))
        return torch.autograd.grad(out, (q, k, v), do)


def libraries(inputs: Sequence[Tensor], kwargs: Kwargs) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """The backward operators behind SDPA, on the call's o and lse; a submission may do so too."""
    causal, scale = bool(kwargs["causal"]), forward.scale_of(kwargs)
    aten, on_gpu = torch.ops.aten, inputs[0].is_cuda
    unread = torch.empty(1, dtype=torch.int64, device=inputs[0].device)  # philox: no dropout

    def flash(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any) -> Any:
        lengths = (None, None, q.shape[2], k.shape[2])
        given = (do, q, k, v, o, lse, *lengths, 0.0, causal, unread[:0], unread[:0])
        return aten._scaled_dot_product_flash_attention_backward.default(*given, scale=scale)

    def cudnn(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any) -> Any:
        lengths = (None, None, q.shape[2], k.shape[2])
        given = (do, q, k, v, o, lse.unsqueeze(-1), unread[0], unread[0], None, *lengths)
        backward = aten._scaled_dot_product_cudnn_attention_backward.default
        return backward(*given, 0.0, causal, scale=scale)

    def flash_for_cpu(q: Any, k: Any, v: Any, o: Any, lse: Any, do: Any) -> Any:
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        return backward(do, q, k, v, o, lse, 0.0, causal, scale=scale)

    calls = {"cudnn": cudnn, "flash": flash} if on_gpu else {"flash": flash_for_cpu}
    for name, call in calls.items():
        try:
            each = [
                call(*(tensor.contiguous() for tensor in one))[:3]
                for one in forward.sequences(inputs, 6)
            ]
        except (RuntimeError, TypeError):  # no kernel for this case, or other arguments by now
            continue
        found = tuple(forward.joined(parts) for parts in zip(*each, strict=True))
        if [grad.shape for grad in found] == [tensor.shape for tensor in inputs[:3]]:
            yield name, found


def exact(inputs: Sequence[Tensor], kwargs: Kwargs) -> tuple[Tensor, ...]:
    """Float64 by definition from q, k, v, do alone; dq, dk, dv as float32."""
    each = [_exact(one, kwargs) for one in forward.sequences(inputs, 6)]
    return tuple(forward.joined(parts) for parts in zip(*each, strict=True))


def _exact(one: tuple[Tensor, ...], kwargs: Kwargs) -> tuple[Tensor, ...]:
    """dq, dk, dv of one sequence, or of a batch of equal ones."""
    q, k, v, _, _, do = one
    scale = forward.number_of_scale(kwargs, q.shape[-1])
    grads = tuple(torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    q, k, v, do = (tensor.flatten(0, 1) for tensor in (q, k, v, do))  # [B·H, S, D], [B·KV, S_k, D]
    dq, dk, dv = (grad.flatten(0, 1) for grad in grads)
    group = q.shape[0] // k.shape[0]
    for shared in range(k.shape[0]):
        k64, v64 = k[shared].double(), v[shared].double()
        dk64, dv64 = torch.zeros_like(k64), torch.zeros_like(v64)  # sums over the group
        for head in range(shared * group, (shared + 1) * group):
            mine = (q[head].double(), k64, v64, do[head].double())
            dq[head] = _exact_head(mine, dk64, dv64, bool(kwargs["causal"]), scale).float()
        dk[shared], dv[shared] = dk64.float(), dv64.float()
    return grads


def exact_rows(
    inputs: Sequence[Tensor], kwargs: Kwargs, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], ...]:
    """One head of k that `generator` draws, with all query heads that read it.

    A row of dk or dv needs all of them.
    """
    shared = inputs[1].flatten(0, 1).shape[0]
    which = int(torch.randint(shared, (1,), generator=generator, device=generator.device))

    def of_group(tensor: Tensor) -> slice:
        each = tensor.flatten(0, 1).shape[0] // shared
        return slice(which * each, (which + 1) * each)

    one = [tensor.flatten(0, 1)[of_group(tensor)].unsqueeze(0) for tensor in inputs[:6]]
    pairs = []
    for whole, grad in zip(inputs[:3], exact((*one, *inputs[6:]), kwargs), strict=True):
        heads, seqlen = of_group(whole), whole.shape[2]
        rows = torch.arange(heads.start * seqlen, heads.stop * seqlen, device=whole.device)
        pairs.append((rows, grad.flatten(0, 2)))
    return tuple(pairs)


def _exact_head(
    head: tuple[Tensor, ...], dk: Tensor, dv: Tensor, causal: bool, scale: float
) -> Tensor:
    """One query head's dq in float64, piece by piece; dk, dv [S_k, D] are added to.

    dS = P ∘ (dO vᵀ - rowsum(dO ∘ O)).
    head: q [S, D], k, v [S_k, D], do [S, D].
    """
    q, k, v, do = head
    dq = torch.empty_like(q)
    seqlen, seqlen_k = q.shape[0], k.shape[0]
    ahead = seqlen_k - seqlen  # query i sees keys 0 to i + ahead
    rows = max(1, min(1024, CHUNK_ELEMENTS // seqlen_k))
    for first in range(0, seqlen, rows):
        last = min(first + rows, seqlen)
        keys = last + ahead if causal else seqlen_k
        scores = q[first:last] @ k[:keys].T * scale  # [rows, keys]
        if causal:
            mask = torch.ones(last - first, last - first, dtype=torch.bool, device=q.device).triu(1)
            scores[:, first + ahead : last + ahead].masked_fill_(mask, -math.inf)
        p = torch.softmax(scores, dim=-1)
        piece = do[first:last]
        dv[:keys] += p.T @ piece
        delta = (piece * (p @ v[:keys])).sum(-1, keepdim=True)
        ds = p.mul_((piece @ v[:keys].T).sub_(delta)).mul_(scale)
        dq[first:last] = ds @ k[:keys]
        dk[:keys] += ds.T @ q[first:last]
    return dq
