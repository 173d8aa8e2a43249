"""Inputs and references of attention forward. Only trusted processes import this for verdicts.

q and o are [batch, heads, seqlen, headdim], k and v [batch, kv_heads, seqlen_k, headdim]; query
head h reads head h // (heads // kv_heads) of k and v, and causal is bottom-right. The float64
reference follows the definition, chunk by chunk over query rows, so that no tensor of seqlen ·
seqlen_k scores with more than CHUNK_ELEMENTS ever exists. Packed sequences are taken apart and
answered one by one: no answer depends on how a library reads cu_seqlens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.problems.base import RETURN_LSE, Kwargs
from harness.process.cuda.shared_memory import DTYPES
from harness.schema import Case

CHUNK_ELEMENTS = 1 << 27  # float64 scores held at once: 1 GiB
LAUNCH_ELEMENTS = 1 << 22  # fewer scores take no less time than these: one launch
SAMPLED_ROWS = 4096  # of one call, over all heads
Shape = tuple[int, ...]

#: Not cuDNN, SDPA's own first choice on Hopper: it builds a plan for every new shape, and a check
#: asks for a dozen small ones.
TRUSTED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
#: SDPA's fused backends by the names that records use; `math` is no fused kernel and wants seqlen²
#: memory.
FUSED = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def make_inputs(
    case: Case, distribution: str, generator: torch.Generator, device: torch.device, kwargs: Kwargs
) -> tuple[Tensor, ...]:
    """Draw q, k, v of one call; `distribution` names one of DISTRIBUTIONS, `kwargs` do not matter.

    Packed sequences come in an order that is drawn, too, each of the distribution by itself; behind
    q, k, v then cu_seqlens_q and cu_seqlens_k.
    """
    drawn = draw(case, (case.shape, case.kv_shape, case.kv_shape), generator, device)
    each = [DISTRIBUTIONS[distribution](q, k, v, generator) for q, k, v in sequences(drawn, 3)]
    edges = (*drawn[3:], *(tensor.clone() for tensor in drawn[3:]))
    return *(joined(parts) for parts in zip(*each, strict=True)), *edges


def draw(
    case: Case, shapes: Sequence[Shape], generator: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """Normal tensors of the case's type and of these shapes, then cu_seqlens if it is packed."""
    dtype = DTYPES[case.dtype.value]
    drawn = [torch.randn(s, generator=generator, device=device, dtype=dtype) for s in shapes]
    if case.seqlens:  # in an order that is drawn, too
        order = torch.randperm(len(case.seqlens), generator=generator, device=device)
        edges = torch.zeros(len(case.seqlens) + 1, dtype=torch.int32, device=device)
        edges[1:] = torch.tensor(case.seqlens, device=device)[order].cumsum(0)
        drawn.append(edges)
    return tuple(drawn)


def sequences(inputs: Sequence[Tensor], width: int) -> list[tuple[Tensor, ...]]:
    """The first `width` of `inputs`, [B, H, S, ...], of each packed sequence, as views.

    Where nothing is packed, they are one sequence.
    """
    tensors = tuple(inputs[:width])
    if len(inputs) == width:
        return [tensors]
    return [
        tuple(tensor[:, :, first:last] for tensor in tensors)
        for first, last in pairwise(inputs[width].tolist())
    ]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Sequences one behind the other again, [B, H, S, ...]."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 2)


Triple = tuple[Tensor, Tensor, Tensor]


def _needle(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Triple:
    """One early key dominates every row of its head: kills skipped and sampled keys."""
    seqlen = k.shape[2]
    # Early, because causal rows before the needle cannot see it.
    where = torch.randint(0, max(1, seqlen // 8), (1,), generator=generator, device=k.device)
    direction = torch.randn(k.shape[-1], generator=generator, device=k.device, dtype=torch.float32)
    direction = direction / direction.norm() * math.sqrt(k.shape[-1])
    k = k.index_copy(2, where, (direction * 3).to(k.dtype).expand(*k.shape[:2], 1, -1))
    return (q.float() * 0.3 + direction).to(q.dtype), k, v


def _large_logits(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Triple:
    """Scores beyond e^11 (fp16), e^88 (bf16), by q or by four keys: no fixed maximum will do."""
    by = 64 if q.dtype is torch.bfloat16 else 8
    drawn = torch.rand((*k.shape[:3], 1), generator=generator, device=k.device)  # [B, KV, S, 1]
    by_key = torch.rand((*k.shape[:2], 1, 1), generator=generator, device=k.device) < 0.5
    by_q = ~by_key.repeat_interleave(q.shape[1] // k.shape[1], 1)
    large = by_key & (drawn < 4 / k.shape[2])
    return torch.where(by_q, q * by, q), torch.where(large, k * by, k), v


def _offset_v(q: Tensor, k: Tensor, v: Tensor, generator: torch.Generator) -> Triple:
    """Columns of V differ in mean per head: kills constants and column means of another head."""
    shape = (*v.shape[:2], 1, v.shape[-1])
    offset = torch.randn(shape, generator=generator, device=v.device, dtype=torch.float32)
    return q, k, (v.float() + offset).to(v.dtype)


def _rising(q: Tensor, k: Tensor, v: Tensor, _: torch.Generator) -> Triple:
    """Logits that rise with the key: every tile brings a new row maximum."""
    seqlen = k.shape[2]
    ramp = torch.linspace(0, 24, seqlen, device=k.device, dtype=torch.float32)[None, None, :, None]
    q, k = q.float() * 0.1, k.float() * 0.1
    q[..., 0], k[..., :1] = math.sqrt(k.shape[-1]), ramp
    return q.to(v.dtype), k.to(v.dtype), v


Draw = Callable[[Tensor, Tensor, Tensor, torch.Generator], Triple]
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda q, k, v, _: (q, k, v),
    "large_logits": _large_logits,
    "needle": _needle,
    "offset_v": _offset_v,
    "tiny_scale": lambda q, k, v, _: (q * 1e-3, k, v),  # softmax close to uniform
    "rising": _rising,
}


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """PyTorch's SDPA with the harness' meaning of `causal`: its own flag is top-left."""
    some: dict[str, Any] = {"scale": scale}
    if q.shape[1] != k.shape[1]:
        some["enable_gqa"] = True
    if causal and q.shape[2] != k.shape[2]:
        # Here: it imports torch._dynamo, which would double the time until a judge is ready.
        from torch.nn.attention.bias import causal_lower_right

        some["attn_mask"] = causal_lower_right(q.shape[2], k.shape[2])
    else:
        some["is_causal"] = causal
    return F.scaled_dot_product_attention(q, k, v, **some)


def scale_of(kwargs: Kwargs) -> float | None:
    """The scale of a call; None is 1/sqrt(headdim)."""
    given = kwargs.get("sm_scale")
    return None if given is None else float(given)


def number_of_scale(kwargs: Kwargs, headdim: int) -> float:
    """The same as a number."""
    scale = scale_of(kwargs)
    return 1.0 / math.sqrt(headdim) if scale is None else scale


def contract(inputs: Sequence[Tensor], kwargs: Kwargs) -> tuple[Tensor, ...]:
    """What PyTorch SDPA gives: the published bar `max|diff| < 1e-2` is against this."""
    with sdpa_kernel(TRUSTED):
        out = _by_sdpa(inputs, kwargs).contiguous()
    return (out, exact_lse(inputs, kwargs)) if kwargs.get(RETURN_LSE) else (out,)


def _by_sdpa(inputs: Sequence[Tensor], kwargs: Kwargs) -> Tensor:
    causal, scale = bool(kwargs["causal"]), scale_of(kwargs)
    return joined([sdpa(q, k, v, causal, scale) for q, k, v in sequences(inputs, 3)])


def libraries(inputs: Sequence[Tensor], kwargs: Kwargs) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Each fused backend of SDPA that takes this call."""
    for name, backend in FUSED.items():
        try:
            with sdpa_kernel(backend):
                found = _by_sdpa(inputs, kwargs)
        except RuntimeError:  # no kernel for this case
            continue
        yield name, (found,)


def exact(inputs: Sequence[Tensor], kwargs: Kwargs) -> tuple[Tensor, ...]:
    """Float64 by definition, returned as float32 (its rounding is 1e-4 of the limits)."""
    out = joined([_exact(one, kwargs) for one in sequences(inputs, 3)])
    return (out, exact_lse(inputs, kwargs)) if kwargs.get(RETURN_LSE) else (out,)


def exact_lse(inputs: Sequence[Tensor], kwargs: Kwargs) -> Tensor:
    """ln(sum of exp(score)) of each row [B, H, S] by float64, as float32; -inf without any key."""
    parts = []
    for q, k, _ in sequences(inputs, 3):
        q64, k64 = (t.flatten(0, 1).double() for t in (q, k))  # [B·H, S, D], [B·KV, S_k, D]
        q64 *= number_of_scale(kwargs, q.shape[-1])
        (heads, seqlen), seqlen_k = q64.shape[:2], k64.shape[1]
        keys_at = torch.arange(seqlen_k, device=q.device)
        last_seen = torch.arange(seqlen, device=q.device)[:, None] + seqlen_k - seqlen
        k64, lse = k64[shared_head(heads, k64)], torch.empty(heads, seqlen, device=q.device)
        step = max(1, CHUNK_ELEMENTS // (heads * seqlen_k))
        for rows in (slice(first, first + step) for first in range(0, seqlen, step)):
            scores = q64[:, rows] @ k64.mT  # [B·H, step, S_k]
            if kwargs["causal"]:
                scores.masked_fill_(keys_at > last_seen[rows], -math.inf)
            lse[:, rows] = scores.logsumexp(-1)
        parts.append(lse.view(q.shape[:3]))
    return joined(parts)


def _exact(one: tuple[Tensor, ...], kwargs: Kwargs) -> Tensor:
    """O of one sequence, or of a batch of equal ones."""
    q, k, v = (tensor.flatten(0, 1) for tensor in one)  # [B·H, S, D], k and v [B·KV, S_k, D]
    every = torch.arange(q.shape[1], device=q.device).expand(q.shape[0], -1)
    rows = max(1, min(1024, CHUNK_ELEMENTS // k.shape[1]))
    # many heads a launch: short ones are launch-bound
    out = _exact_at(q, k, v, kwargs, every, max(1, CHUNK_ELEMENTS // (rows * k.shape[1])))
    return out.view(one[0].shape)


def shared_head(heads: int, k: Tensor) -> Tensor:
    """For each of `heads` query heads of the batch the head of k [B·KV, S_k, D] that it reads."""
    return torch.arange(heads, device=k.device) // (heads // k.shape[0])


def exact_rows(
    inputs: Sequence[Tensor], kwargs: Kwargs, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Float64 for some rows of every head: their flat indices [N], and O there [N, D] as float32.

    What it finds. Each head's rows are cut into equal strata and one row is drawn from each, so
    that N of the call's M rows are looked at. If a share f of the rows is wrong, wherever they lie,
    all are missed with a probability of at most exp(-f·N): strata are drawn independently, and the
    product of (1 - share of the stratum) is at most that. With N = 4096, 1 % of wrong rows are
    missed once in 10^17 calls. One whole head out of H, which costs as much or more, misses up to a
    share 1 - f of the calls: all of the wrong rows may lie in few heads. Packed sequences have rows
    by their length, each at least one a head.
    """
    total, first, rows, out = inputs[0].shape[2], 0, [], []
    for one in sequences(inputs, 3):
        q, k, v = (tensor.flatten(0, 1) for tensor in one)  # [H, S, D], all heads of the batch
        heads, seqlen, headdim = q.shape
        mine = draw_rows(heads, seqlen, generator, -(-SAMPLED_ROWS * seqlen // total))  # [H, R]
        numbers = torch.arange(heads, device=mine.device)
        rows.append((mine + first + total * numbers[:, None]).flatten())
        at_once = max(1, CHUNK_ELEMENTS // (2 * k.shape[1] * headdim))
        out.append(_exact_at(q, k, v, kwargs, mine, at_once).flatten(0, 1))
        first += seqlen
    return ((torch.cat(rows), torch.cat(out)),)


def _exact_at(
    q: Tensor, k: Tensor, v: Tensor, kwargs: Kwargs, rows: Tensor, at_once: int
) -> Tensor:
    """O [H, R, D] at rows [H, R] of q [H, S, D], `at_once` heads at a time."""
    read, heads = shared_head(q.shape[0], k), range(0, q.shape[0], at_once)
    each = (slice(first, first + at_once) for first in heads)
    out = [_exact_some(q[some], k[read[some]], v[read[some]], kwargs, rows[some]) for some in each]
    return torch.cat(out)


def draw_rows(
    heads: int, seqlen: int, generator: torch.Generator, wanted: int = SAMPLED_ROWS
) -> Tensor:
    """[heads, R] rising row numbers: one of each of R equal strata, R * heads about `wanted`."""
    each, device = min(seqlen, max(1, -(-wanted // heads))), generator.device
    edges = torch.arange(each + 1, device=device) * seqlen // each
    chance = torch.rand(heads, each, generator=generator, device=device, dtype=torch.float64)
    return edges[:-1] + (chance * (edges[1:] - edges[:-1])).long()


def _exact_some(q: Tensor, k: Tensor, v: Tensor, kwargs: Kwargs, rows: Tensor) -> Tensor:
    """Some heads q [H, S, D], k, v [H, S_k, D], rows [H, R] → O there [H, R, D].

    Row r of a head lies in [r * S // R, (r + 1) * S // R): no later key than needed is read, and
    only keys that not all rows of the chunk may see are masked.
    """
    (heads, seqlen, headdim), seqlen_k = q.shape, k.shape[1]
    count, ahead = rows.shape[1], seqlen_k - seqlen  # query i sees keys 0 to i + ahead
    k64, v64 = k.double(), v.double()
    q64 = q.gather(1, rows[..., None].expand(-1, -1, headdim)).double()
    q64 *= number_of_scale(kwargs, headdim)
    out = torch.empty(q64.shape, dtype=torch.float32, device=q.device)
    keys_at = torch.arange(seqlen_k, device=q.device)
    few, most = (each // (heads * seqlen_k) for each in (LAUNCH_ELEMENTS, CHUNK_ELEMENTS))
    step = max(1, min(max(32, count // 8, few), most))
    for first in range(0, count, step):
        last = min(first + step, count)
        keys = last * seqlen // count + ahead if kwargs["causal"] else seqlen_k
        scores = q64[:, first:last] @ k64[:, :keys].mT  # [H, step, keys]
        if kwargs["causal"]:
            seen = max(0, first * seqlen // count + ahead + 1)  # by every row of the chunk
            later = keys_at[seen:keys] > rows[:, first:last, None] + ahead
            scores[..., seen:].masked_fill_(later, -math.inf)
        out[:, first:last] = (torch.softmax(scores, dim=-1) @ v64[:, :keys]).float()
    return out
