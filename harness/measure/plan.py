"""Suite × entrants → bursts in an order nobody can foresee. Pure: all chance comes from `rng`."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from harness.problems import Problem
from harness.problems.base import Probe
from harness.schema import Case, Suite

AUDITS = 0.2  # before each turn that counts, in the mean
#: The same of calls by themselves on no clock, in blocks that run again: friends had seven
#: repeated, and five of them that met few odd values hid overlap which gave 4 % on an H200.
ODD_CALLS = 2.0


@dataclass(frozen=True)
class Turn:
    """One burst of one entrant, on secret values of its own. To a worker all look alike."""

    name: str
    probe: Probe
    counts: bool = True  # else an audit, or there to hide what its call by itself is asked
    alone: bool = False  # behind the burst comes one of a single call
    odd: Probe | None = None  # else: the same, of these values and on no clock


@dataclass(frozen=True)
class Block:
    """One turn of every entrant that counts, behind audits of some, in this order.

    What an entrant is asked is drawn for it alone: a friend that had its turn can tell it nothing.
    `index` numbers the timed blocks from 0; warm-up blocks are negative.
    """

    turns: tuple[Turn, ...]
    index: int

    @property
    def timed(self) -> bool:
        """Whether its samples count."""
        return self.index >= 0

    @property
    def alone(self) -> set[str]:
        """Whose call by itself is on the clock."""
        return {turn.name for turn in self.turns if turn.alone}

    def of(self, names: Collection[str]) -> "Block":
        """The same for `names` only."""
        return replace(self, turns=tuple(turn for turn in self.turns if turn.name in names))

    def asking_alone(self, name: str) -> "Block":
        """The same with a call by itself of `name` on the clock."""
        each = (
            replace(turn, alone=True, odd=None) if turn.counts and turn.name == name else turn
            for turn in self.turns
        )
        return replace(self, turns=tuple(each))


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
    """Blocks of one case: warm-up, then timed blocks with the audits hidden in them.

    Each of these and each odd call by itself is chance, and drawn for each entrant: who met some
    never knows that none is left, and nobody knows when others meet theirs.
    `soonest`: entrants may leave after so many timed blocks, so one audit lies before that, and
    before it are the `alone` blocks in which calls are made by themselves: the first one, for
    whoever is stopped soon, and others.
    """
    normal, audits = Probe(case, "normal", problem.kwargs(case)), problem.audits(case)
    plan = [
        Block(
            tuple(Turn(name, normal, alone=alone > 0) for name in shuffled(entrants, rng)), -1 - n
        )
        for n in range(suite.warmup_blocks)  # the first two take longer
    ]
    share = min(len(audits), max(1, suite.blocks // 6)) / suite.blocks
    drawn = max(share * suite.blocks - 1, 1) / suite.blocks
    early, first = range(1, min(soonest or suite.blocks, suite.blocks)), soonest or suite.blocks
    single, before = dict[str, set[int]](), dict[str, list[list[Turn]]]()
    for name in entrants:
        single[name] = {0, *rng.sample(early, min(alone - 1, len(early)))} if alone else set()
        odd = [drawn if n < first else share for n in range(suite.blocks)]
        before[name] = [_before(name, normal, audits, rng, each) for each in odd]
        if audits:  # beside what is drawn: where it alone stood, who met it met no other
            before[name][rng.randrange(first)].append(Turn(name, rng.choice(audits), counts=False))
    for n in range(suite.blocks):
        turns = []
        for name in shuffled(entrants, rng):
            counted = Turn(name, normal, alone=n in single[name])
            if single[name] and not counted.alone and rng.random() < share:
                counted = replace(counted, odd=rng.choice(audits))
            turns.append([*before[name][n], counted])
        plan.append(Block(_mixed(turns, rng), n))
    return plan


def further_block(
    case: Case,
    problem: Problem,
    entrants: Sequence[str],
    rng: random.Random,
    index: int,
    alone: bool = False,
) -> Block:
    """One more timed block, with audits as often as in the planned ones.

    alone: with a call by itself, behind others of the same kind whose call has odd values, and
    no chance to tell which it will be.
    """
    normal, audits = Probe(case, "normal", problem.kwargs(case)), problem.audits(case)
    turns = []
    for name in shuffled(entrants, rng):
        before = _before(name, normal, audits, rng, AUDITS, ODD_CALLS if alone else 0.0)
        turns.append([*before, Turn(name, normal, alone=alone)])
    return Block(_mixed(turns, rng), index)


def _before(
    name: str,
    normal: Probe,
    audits: Sequence[Probe],
    rng: random.Random,
    odd: float,
    odd_calls: float = 0.0,
) -> list[Turn]:
    """What lies before a turn that counts: so many audits and odd calls by themselves in the mean.

    Each is drawn as if nothing had come before, so that what was met tells nothing of the next:
    friends had the blocks dropped in which one had not known that its turn would be as usual.
    """
    turns = list[Turn]()
    while audits and (drawn := rng.random() * (1 + odd + odd_calls)) < odd + odd_calls:
        audit = rng.choice(audits)
        plain = Turn(name, normal, counts=False, odd=audit)
        turns.append(Turn(name, audit, counts=False) if drawn < odd else plain)
    return turns


def _mixed(each: Sequence[Sequence[Turn]], rng: random.Random) -> tuple[Turn, ...]:
    """One block of the turns of `each`, whose last one counts: firsts in that order, others later.

    So a first turn tells by its place no more than by its values what it is. Behind the turn that
    counts lies none: whose first was as usual would know that the second is not.
    """
    turns = [mine[0] for mine in each]
    for first, *later in each:
        at = next(n for n, turn in enumerate(turns) if turn is first)  # others may be equal
        for turn in later:
            at = rng.randint(at + 1, len(turns))
            turns.insert(at, turn)
    return tuple(turns)


def shuffled(names: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """A random order: random interleaving lowers run-to-run variance (google/benchmark docs)."""
    return tuple(rng.sample(list(names), len(names)))
