"""Which bursts are compared with libraries: any of a case's, with equal chance, and none of a baseline's."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from harness.blocks import to_compare
from harness.schema import Case, Kind

CASE = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64)
BLOCKS = 12


def last_compared(seed: int, kind: Kind = Kind.SUBMISSION) -> int | None:
    samples: list[int] = []
    state: Any = SimpleNamespace(
        rng=random.Random(seed),
        seats={"mine": SimpleNamespace(entrant=SimpleNamespace(kind=kind))},
        record=lambda name, case: SimpleNamespace(samples=samples),
    )
    last = None
    for block in range(BLOCKS):
        if to_compare(state, "mine", CASE):
            last = block
        samples.append(block)
    return last


def test_the_last_one_compared_is_any_of_them() -> None:
    counts = Counter(last_compared(seed) for seed in range(6000))
    assert set(counts) == set(range(BLOCKS))
    assert max(abs(count - 500) for count in counts.values()) < 110  # five deviations of 21


def test_a_baseline_is_what_it_says() -> None:
    assert last_compared(1, Kind.BASELINE) is None
