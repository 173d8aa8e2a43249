"""Shapes that nobody knows before a run asks them, some a headdim: they follow from its secret.

A suite's own shapes are public, so a kernel can be keyed on them. These lie beside them: as many
tokens, another length, other heads in groups as large, either mask. Everything but `burst` follows
from the secret and the suite, so that a record which reveals its secret shows that nobody chose
its hidden shapes:

    number(what) = first 8 bytes of HMAC-SHA256(secret, "hidden/<headdim>/<n>/<what>"), halved
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from harness.problems.base import Problem, TensorSpec
from harness.process.cuda.arena_layout import aligned, nbytes
from harness.schema import HIDDEN_PREFIX, MOST_CALLS, Case

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

    number: a whole number below 2^63 for every text, from harness/judge/secret.py.
    Their bursts fit into the buffers that the official ones need.
    """
    found = []
    for headdim in dict.fromkeys(case.headdim for case in official):
        beside = [case for case in official if case.headdim == headdim]
        for n in range(1, each + 1):
            words = {what: number(f"hidden/{headdim}/{n}/{what}") for what in DRAWN}
            name = f"{HIDDEN_PREFIX}hdim{headdim}{'' if n == 1 else f'_{n}'}"
            case = _shape(beside, words).model_copy(update={"name": name})
            found.append(case.model_copy(update={"burst": _burst(case, official, problem)}))
    return tuple(found)


def _shape(beside: Sequence[Case], drawn: Mapping[str, int]) -> Case:
    """One shape of the headdim that all of `beside` have; lengths scale with their tokens."""
    tokens = max(case.batch * case.seqlen for case in beside)
    like = max(beside, key=lambda case: case.heads)
    groups = like.kv_heads or like.heads  # of query heads that share a head of k and v
    shortest, longest = (max(2, tokens * length // PAPER_TOKENS) for length in LENGTHS)
    octaves = range((longest // shortest).bit_length())
    low = shortest << octaves[drawn["octave"] % len(octaves)]
    seqlen = low + drawn["seqlen"] % (min(2 * low, longest + 1) - low)
    seqlen += seqlen % TILE == 0
    fewest, most = (max(1, groups * quarters // 4) for quarters in HEADS)
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


def _burst(case: Case, official: Sequence[Case], problem: Problem) -> int:
    """As much work as in a burst of the same headdim, as far as the official buffers have room."""
    beside = [known for known in official if known.headdim == case.headdim]
    work = statistics.median(known.burst * problem.flops(known) for known in beside)
    room = [
        max(known.burst * _bytes(specs(known)) for known in official) // _bytes(specs(case))
        for specs in (problem.inputs, problem.outputs)
    ]
    return max(1, min(round(work / problem.flops(case)), MOST_CALLS, *room))


def _bytes(specs: Sequence[TensorSpec]) -> int:
    return sum(aligned(nbytes(spec.shape, spec.dtype)) for spec in specs)
