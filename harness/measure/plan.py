"""Suite × entrants → bursts in an order nobody can foresee. Pure: all chance comes from `rng`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness.problems import Problem
from harness.problems.base import Probe
from harness.schema import Case, Suite

AUDIT_SHARE = 1 / 6  # of the blocks that a run adds to the suite's


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

    `soonest`: entrants may leave after so many timed blocks, so one audit lies before that and the
    others behind it, and before it are the `alone` blocks in which calls are made by themselves:
    the first one, for whoever is stopped soon, and others. Some of the rest have one that is odd.
    """
    early = range(1, min(soonest or suite.blocks, suite.blocks))
    single = {0, *rng.sample(early, min(alone - 1, len(early)))} if alone else set()
    normal = Probe(case, "normal", problem.kwargs(case))
    warm = [
        Block(normal, shuffled(entrants, rng), -1 - n, alone > 0)  # the first two take longer
        for n in range(suite.warmup_blocks)
    ]
    audits = problem.audits(case)[: max(1, suite.blocks // 6)]
    rest = [n for n in range(suite.blocks) if single and n not in single]
    odd = dict(zip(rng.sample(rest, min(len(audits), len(rest))), audits, strict=False))
    timed = [
        Block(normal, shuffled(entrants, rng), n, n in single, odd.get(n))
        for n in range(suite.blocks)
    ]
    earliest, latest = 0, soonest or len(timed) + 1
    for probe in audits:
        timed.insert(rng.randrange(earliest, latest), Block(probe, shuffled(entrants, rng), None))
        earliest, latest = (soonest + 1 if soonest else 0), len(timed) + 1
    return warm + timed


def further_block(
    case: Case, problem: Problem, entrants: Sequence[str], rng: random.Random, index: int
) -> list[Block]:
    """One more timed block, with an audit at its side as often as among the planned ones."""
    found = [Block(Probe(case, "normal", problem.kwargs(case)), shuffled(entrants, rng), index)]
    audits = problem.audits(case)
    if audits and rng.random() < AUDIT_SHARE:
        audit = Block(rng.choice(audits), shuffled(entrants, rng), None)
        found.insert(rng.randrange(2), audit)
    return found


def shuffled(names: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """A random order: random interleaving lowers run-to-run variance (google/benchmark docs)."""
    return tuple(rng.sample(list(names), len(names)))
