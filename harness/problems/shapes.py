"""Shapes beside those of a suite: near ones for probes, and hidden ones for the clock.

Near a case: what its claims allow, with the axes that the case has.

Hidden: shapes that nobody knows before a run asks them, some a headdim, because they follow from
its secret. A suite's own shapes are public, so a kernel can be keyed on them. These lie beside
them: as many tokens, another length, other heads in groups as large, either mask. Everything but
`burst` follows from the secret and the suite, so that a record which reveals its secret shows that
nobody chose its hidden shapes:

    number(what) = first 8 bytes of HMAC-SHA256(secret, "hidden/<headdim>/<n>/<what>"), halved
"""

import hmac
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from harness.problems.base import Problem, TensorSpec
from harness.process.cuda.arena_layout import aligned, nbytes
from harness.schema import HIDDEN_PREFIX, MOST_CALLS, Case, Claims
from harness.schema.suite import MOST_HEADS, MOST_SEQLEN

MOST_MORE_KEYS = 77  # than queries, where a case has more: the mask ends inside a tile
TILE = 64
PACKED = ((129, 1, 17, 64), (1, 333, 1))  # lengths off the tile; a sequence of one token


def near(case: Case, claims: Claims, heads: int, seqlen: int, batch: int = 1) -> Case:
    """`case` with few heads and short sequences, in groups as large as its own.

    heads: of q where k has as many; else the heads of k are 2, or 1 where 1 is asked for.
    seqlen: queries; of packed sequences the longest one's.
    """
    step = claims.seqlen_multiple
    seqlen = round_up(_claimed(seqlen, claims), step)
    few: dict[str, Any] = {"heads": heads, "batch": batch, "seqlen": seqlen, "burst": 1}
    if case.kv_heads:
        kv_heads = min(heads, 2)
        few |= {"heads": kv_heads * (case.heads // case.kv_heads), "kv_heads": kv_heads}
    if case.seqlens:
        lengths = (seqlen // 3, seqlen, 1, seqlen // 2)
        few |= _in_one_row([_claimed(n, claims) for n in lengths], step)
    elif case.seqlen_k and case.seqlen_k > case.seqlen:
        few["seqlen_k"] = round_up(seqlen + min(case.seqlen_k - case.seqlen, MOST_MORE_KEYS), step)
    elif case.seqlen_k:
        few["seqlen_k"] = round_up(max(seqlen // 2, claims.seqlen_min), step)
    return _copy(case, **few)


def _claimed(seqlen: int, claims: Claims) -> int:
    """`seqlen`, or one as far off the tile that is claimed."""
    return seqlen if seqlen >= claims.seqlen_min else claims.seqlen_min + seqlen % TILE


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


def number_of(key: bytes, label: str) -> int:
    """63 bits for a generator: HMAC(key, label), so that one leaked number tells nothing."""
    return int.from_bytes(hmac.digest(key, label.encode(), "sha256")[:8], "little") >> 1


PAPER_TOKENS = 16_384  # of a call: what LENGTHS goes with
LENGTHS = (500, 20_000)  # each octave as likely as the next
TILE = 64  # no length is a multiple of it: edges of tiles are met
DRAWN = ("octave", "seqlen", "heads", "causal")
PLAIN: dict[str, object] = {"kv_heads": None, "seqlen_k": None, "seqlens": ()}
HEADS = (3, 5)  # quarters of the suite's own number of heads


def hidden_cases(
    official: Sequence[Case], each: int, number: Callable[[str], int], problem: Problem
) -> tuple[Case, ...]:
    """`each` shapes for every headdim of `official`: `hidden_hdim64`, then `hidden_hdim64_2`.

    number: a whole number below 2^63 for every text: `number_of` the run's secret.
    Their bursts fit into the buffers that the official ones need.
    """
    asked = product(dict.fromkeys(case.headdim for case in official), range(1, each + 1))
    found = (hidden_case(official, headdim, n, number, problem) for headdim, n in asked)
    return tuple(c.model_copy(update={"burst": _burst(c, official, problem)}) for c in found)


def hidden_case(
    official: Sequence[Case], headdim: int, n: int, number: Callable[[str], int], problem: Problem
) -> Case:
    """The n-th of one headdim of `official`; its burst is still that of an official one."""
    words = {what: number(f"hidden/{headdim}/{n}/{what}") for what in DRAWN}
    name = f"{HIDDEN_PREFIX}hdim{headdim}{'' if n == 1 else f'_{n}'}"
    case = _shape([case for case in official if case.headdim == headdim], words)
    case = case.model_copy(update={"name": name})
    while not _room(case, official, problem):
        case = _halved(case)
    return case


def _shape(beside: Sequence[Case], drawn: Mapping[str, int]) -> Case:
    """One shape of the headdim that all of `beside` have; lengths scale with their tokens."""
    tokens = max(case.batch * case.seqlen for case in beside)
    tokens = min(tokens, MOST_SEQLEN * PAPER_TOKENS // LENGTHS[1])
    like = max(beside, key=lambda case: case.heads)
    groups = like.kv_heads or like.heads  # of query heads that share a head of k and v
    shortest, longest = (max(2, tokens * length // PAPER_TOKENS) for length in LENGTHS)
    octaves = range((longest // shortest).bit_length())
    low = shortest << octaves[drawn["octave"] % len(octaves)]
    seqlen = low + drawn["seqlen"] % (min(2 * low, longest + 1) - low)
    seqlen += seqlen % TILE == 0
    fewest, most = (max(1, groups * quarters // 4) for quarters in HEADS)
    most = min(most, MOST_HEADS * groups // like.heads)
    kv_heads = fewest + drawn["heads"] % (most - fewest + 1)
    return beside[0].model_copy(
        update={
            **PLAIN,
            "batch": max(1, (tokens + seqlen // 2) // seqlen),
            "heads": kv_heads * (like.heads // groups),
            "kv_heads": kv_heads if like.kv_heads else None,
            "seqlen": seqlen,
            "causal": drawn["causal"] % 2 == 1,
        }
    )


def _halved(case: Case) -> Case:
    """Of half its rows, or heads, or tokens: most tokens and most heads are of several cases."""
    groups = case.kv_heads or case.heads
    if case.batch > 1:
        return case.model_copy(update={"batch": case.batch // 2})
    if few := groups // 2:
        heads = {"heads": few * (case.heads // groups), "kv_heads": few if case.kv_heads else None}
        return case.model_copy(update=heads)
    seqlen = case.seqlen // 2
    return case.model_copy(update={"seqlen": seqlen + (seqlen % TILE == 0)})


def _burst(case: Case, official: Sequence[Case], problem: Problem) -> int:
    """As much work as in a burst of the same headdim, as far as the official buffers have room."""
    beside = [known for known in official if known.headdim == case.headdim]
    work = statistics.median(known.burst * problem.flops(known) for known in beside)
    calls = min(round(work / problem.flops(case)), MOST_CALLS, _room(case, official, problem))
    return max(1, calls)


def _room(case: Case, official: Sequence[Case], problem: Problem) -> int:
    """How many of its calls the official buffers hold."""
    return min(
        max(known.burst * room_for(specs(known)) for known in official) // room_for(specs(case))
        for specs in (problem.inputs, problem.outputs)
    )


def room_for(specs: Sequence[TensorSpec]) -> int:
    """Bytes that these take in an arena, one call's."""
    return sum(aligned(nbytes(spec.shape, spec.dtype)) for spec in specs)
