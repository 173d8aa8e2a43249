"""Suite × entrants → bursts in an order nobody can foresee. Pure: all chance comes from `rng`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.problems import Problem
from harness.problems.base import Probe
from harness.schema import Case, Suite

AUDIT_SHARE = 1 / 6  # of the blocks, beside which lies an audit
#: Of the calls by themselves in blocks that run again: friends had seven repeated, and five of
#: them that met few odd values hid overlap which gave 4 % on an H200.
ODD_SHARE = 2 / 3


@dataclass(frozen=True)
class Block:
    """One kind of secret inputs that every entrant meets, each with its own values, in this order.

    `index` numbers the timed blocks from 0; warm-up blocks are negative and audits None. To a
    worker all three look alike.
    """

    probe: Probe
    order: tuple[str, ...]
    index: int | None
    alone: bool = False  # behind each burst comes one of a single call
    odd: Probe | None = None  # else: the same, of these values and on no clock

    @property
    def timed(self) -> bool:
        """Whether its samples count."""
        return self.index is not None and self.index >= 0


def hidden_blocks(suite: Suite) -> int:
    """So many a hidden shape gets: half of the suite's, from 5 to 10."""
    return min(max(5, suite.blocks // 2), 10)


def plan_case(
    suite: Suite,
    case: Case,
    problem: Problem,
    entrants: Sequence[str],
    rng: random.Random,
    soonest: int | None = None,
    alone: int = 0,
) -> list[Block]:
    """Blocks of one case: warm-up, then timed blocks with the audits hidden among them.

    Each of them and each odd call by itself is chance: who met some never knows that none is left.
    `soonest`: entrants may leave after so many timed blocks, so one audit lies before that, and
    before it are the `alone` blocks in which calls are made by themselves: the first one, for
    whoever is stopped soon, and others.
    """
    early = range(1, min(soonest or suite.blocks, suite.blocks))
    single = {0, *rng.sample(early, min(alone - 1, len(early)))} if alone else set()
    normal = Probe(case, "normal", problem.kwargs(case))
    plan = [
        Block(normal, shuffled(entrants, rng), -1 - n, alone > 0)  # the first two take longer
        for n in range(suite.warmup_blocks)
    ]
    audits = problem.audits(case)
    share = min(len(audits), max(1, suite.blocks // 6)) / suite.blocks
    asked = {n for n in range(suite.blocks) if rng.random() < share}
    if audits and min(asked, default=suite.blocks) >= (first := soonest or suite.blocks):
        asked.add(rng.randrange(first))
    for n in range(suite.blocks):
        odd = rng.choice(audits) if single and n not in single and rng.random() < share else None
        if n in asked:
            plan.append(Block(rng.choice(audits), shuffled(entrants, rng), None))
        plan.append(Block(normal, shuffled(entrants, rng), n, n in single, odd))
    return plan


def further_block(
    case: Case,
    problem: Problem,
    entrants: Sequence[str],
    rng: random.Random,
    index: int,
    alone: bool = False,
) -> list[Block]:
    """One more timed block, behind audits as often as among the planned ones.

    alone: with a call by itself, behind others of the same kind whose call has odd values, and
    no chance to tell which it will be.
    """
    normal, found = Probe(case, "normal", problem.kwargs(case)), list[Block]()
    audits = problem.audits(case)
    while audits and rng.random() < AUDIT_SHARE:
        found.append(Block(rng.choice(audits), shuffled(entrants, rng), None))
    while audits and alone and rng.random() < ODD_SHARE:
        found.append(Block(normal, shuffled(entrants, rng), None, odd=rng.choice(audits)))
    return [*found, Block(normal, shuffled(entrants, rng), index, alone)]


def shuffled(names: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """A random order: random interleaving lowers run-to-run variance (google/benchmark docs)."""
    return tuple(rng.sample(list(names), len(names)))
