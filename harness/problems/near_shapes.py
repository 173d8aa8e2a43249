"""Small shapes near a case, for probes: what its claims allow, with the axes that the case has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.problems.base import Probe
from harness.schema import Case, Claims

MOST_MORE_KEYS = 77  # than queries, where a case has more: the mask ends inside a tile
PACKED = ((129, 1, 17, 64), (1, 333, 1))  # lengths off the tile; a sequence of one token


def probe_of(case: Case, kind: str, causal: bool, scale: float | None = None) -> Probe:
    """`case` with this mask and inputs of this kind, called by the usual arguments."""
    kwargs: dict[str, bool | int | float | None] = {"causal": causal, "sm_scale": scale}
    if case.seqlens:
        kwargs |= {"max_seqlen_q": max(case.seqlens), "max_seqlen_k": max(case.seqlens)}
    return Probe(case.model_copy(update={"causal": causal}), kind, kwargs)


def near(case: Case, claims: Claims, heads: int, seqlen: int, batch: int = 1) -> Case:
    """`case` with few heads and short sequences, in groups as large as its own.

    heads: of q where k has as many; else the heads of k are 2, or 1 where 1 is asked for.
    seqlen: queries; of packed sequences the longest one's.
    """
    step = claims.seqlen_multiple
    seqlen = round_up(seqlen, step)
    few: dict[str, Any] = {"heads": heads, "batch": batch, "seqlen": seqlen, "burst": 1}
    if case.kv_heads:
        kv_heads = min(heads, 2)
        few |= {"heads": kv_heads * (case.heads // case.kv_heads), "kv_heads": kv_heads}
    if case.seqlens:
        lengths = (seqlen // 3, seqlen, 1, seqlen // 2)
        few |= _in_one_row([max(n, claims.seqlen_min) for n in lengths], step)
    elif case.seqlen_k and case.seqlen_k > case.seqlen:
        more = min(case.seqlen_k - case.seqlen, MOST_MORE_KEYS)
        few["seqlen_k"] = round_up(seqlen + more, step)
    elif case.seqlen_k:
        few["seqlen_k"] = round_up(max(seqlen // 2, claims.seqlen_min), step)
    return _copy(case, **few)


def others(case: Case, claims: Claims, causal: bool) -> list[Case]:
    """A few more shapes for each axis that `case` has.

    Not for what is only claimed: a build of a library may lack kernels that no case asks for.
    """
    found: list[dict[str, Any]] = []
    step = claims.seqlen_multiple
    if case.kv_heads:
        found += [{"heads": q, "kv_heads": kv, "seqlen": 129} for q, kv in ((6, 2), (3, 1))]
    if case.seqlen_k:
        lengths = [(17, 333), (127, 128), (2, 257), *([] if causal else [(200, 77)])]
        found += [{"heads": 2, "seqlen": q, "seqlen_k": k} for q, k in lengths]
    for shape in found:
        shape |= {key: round_up(shape[key], step) for key in ("seqlen", "seqlen_k") if key in shape}
    if case.seqlens:
        found += [{"heads": 2, "batch": 1, **_in_one_row(lengths, step)} for lengths in PACKED]
    plain = {"batch": 2, "kv_heads": None, "seqlen_k": None, "seqlens": (), "burst": 1}
    shapes = [_copy(case, **plain | shape, causal=causal) for shape in found]
    return [shape for shape in shapes if not claims.refusal(shape)]


def masks(case: Case, claims: Claims) -> list[bool]:
    """The values of `causal` that are claimed and that a case of these lengths can have."""
    flags = {"both": [True, False], "true": [True], "false": [False]}[claims.causal]
    return flags if case.seqlen <= case.kv_shape[2] else [False]


def round_up(value: int, step: int) -> int:
    """`value`, or the next multiple of `step` above it; at least one step."""
    return max(1, -(-value // step)) * step


def _in_one_row(lengths: Sequence[int], step: int) -> dict[str, Any]:
    seqlens = tuple(round_up(n, step) for n in lengths)
    return {"batch": 1, "seqlens": seqlens, "seqlen": sum(seqlens)}


def _copy(case: Case, **changes: object) -> Case:
    """Validated, unlike a `model_copy`: equal counts become unset."""
    return Case.model_validate(case.model_dump() | changes)
