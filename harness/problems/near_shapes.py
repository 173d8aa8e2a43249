"""Small shapes near a case, for probes: what its claims allow, with the axes that the case has."""

from __future__ import annotations

from harness.schema import Case, Claims

MOST_MORE_KEYS = 77  # than queries, where a case has more: the mask ends inside a tile


def near(case: Case, claims: Claims, heads: int, seqlen: int, batch: int = 1) -> Case:
    """`case` with few heads and short sequences, in groups as large as its own.

    heads: of q where k has as many; else the heads of k are 2, or 1 where 1 is asked for.
    """
    step = claims.seqlen_multiple
    seqlen = round_up(seqlen, step)
    few = {"heads": heads, "kv_heads": None, "seqlen_k": None}
    if case.kv_heads:
        kv_heads = min(heads, 2)
        few |= {"heads": kv_heads * (case.heads // case.kv_heads), "kv_heads": kv_heads}
    if case.seqlen_k and case.seqlen_k > case.seqlen:
        more = min(case.seqlen_k - case.seqlen, MOST_MORE_KEYS)
        few["seqlen_k"] = round_up(seqlen + more, step)
    elif case.seqlen_k:
        few["seqlen_k"] = round_up(max(seqlen // 2, claims.seqlen_min), step)
    return _copy(case, batch=batch, seqlen=seqlen, burst=1, **few)


def claimed(case: Case, claims: Claims, causal: bool) -> list[Case]:
    """A few shapes for each axis that is claimed, whether or not `case` has it."""
    found = []
    if claims.gqa:
        found += [
            _plain(case, causal, heads, kv_heads, 129) for heads, kv_heads in ((6, 2), (3, 1))
        ]
    if claims.seqlens == "any":
        lengths = [(17, 333), (127, 128), (2, 257), *([] if causal else [(200, 77)])]
        found += [_plain(case, causal, 2, None, q, k) for q, k in lengths]
    fit = (_fitted(shape, claims) for shape in found)
    return [shape for shape in fit if not claims.refusal(shape)]


def masks(case: Case, claims: Claims) -> list[bool]:
    """The values of `causal` that are claimed and that a case of these lengths can have."""
    flags = {"both": [True, False], "true": [True], "false": [False]}[claims.causal]
    return flags if case.seqlen <= case.kv_shape[2] else [False]


def round_up(value: int, step: int) -> int:
    """`value`, or the next multiple of `step` above it."""
    return -(-value // step) * step


def _plain(
    case: Case,
    causal: bool,
    heads: int,
    kv_heads: int | None,
    seqlen: int,
    seqlen_k: int | None = None,
) -> Case:
    shape = {"heads": heads, "kv_heads": kv_heads, "seqlen": seqlen, "seqlen_k": seqlen_k}
    return _copy(case, batch=2, causal=causal, burst=1, **shape)


def _fitted(case: Case, claims: Claims) -> Case:
    """Lengths up to the next ones that are claimed."""
    step = claims.seqlen_multiple
    seqlen_k = case.seqlen_k and round_up(case.seqlen_k, step)
    return _copy(case, seqlen=round_up(case.seqlen, step), seqlen_k=seqlen_k)


def _copy(case: Case, **changes: object) -> Case:
    """Validated, unlike a `model_copy`: equal counts become unset."""
    return Case.model_validate(case.model_dump() | changes)
