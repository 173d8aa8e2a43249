"""Suite × entrants → bursts in an order nobody can foresee. Pure: all chance comes from `rng`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.problems import Problem
from harness.problems.base import Probe
from harness.schema import Case, Suite


@dataclass(frozen=True)
class Block:
    """One set of secret inputs that every entrant meets, in this order.

    `index` numbers the timed blocks from 0; warm-up blocks are negative and audits None. To a worker all
    three look alike.
    """

    probe: Probe
    order: tuple[str, ...]
    index: int | None

    @property
    def timed(self) -> bool:
        """Whether its samples count."""
        return self.index is not None and self.index >= 0


def plan_case(
    suite: Suite, case: Case, problem: Problem, entrants: Sequence[str], rng: random.Random
) -> list[Block]:
    """Blocks of one case: warm-up, then timed blocks with the audits hidden among them."""
    normal = Probe(case, "normal", problem.kwargs(case))
    warm = [Block(normal, shuffled(entrants, rng), -1 - n) for n in range(suite.warmup_blocks)]
    timed = [Block(normal, shuffled(entrants, rng), n) for n in range(suite.blocks)]
    for probe in problem.audits(case)[: max(1, suite.blocks // 6)]:
        timed.insert(rng.randrange(len(timed) + 1), Block(probe, shuffled(entrants, rng), None))
    return warm + timed


def shuffled(names: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """A random order: random interleaving lowers run-to-run variance (google/benchmark docs)."""
    return tuple(rng.sample(list(names), len(names)))
