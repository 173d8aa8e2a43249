"""When to stop measuring whom, soundly. Pure: knows the statistics and nobody else.

A run that may stop early looks at a few numbers of blocks that are fixed before it starts
(`StoppingRule.looks`) and shares the error it allows itself among these looks: each uses intervals
of level 1 - 0.05 / looks. Where each interval keeps its level, one of a pair's misses the truth in
at most 5 % of the runs (Bonferroni's inequality; K. Lan, D. DeMets, Biometrika 70, 1983). All that
is told of such a run, its speed-ups and its ties, uses the same level. Why, and how often it errs:
docs/how-timing-works.md, tests/measure/test_stopping.py.

The race drops candidates as successive elimination does (E. Even-Dar, S. Mannor, Y. Mansour,
"Action Elimination and Stopping Conditions for the Multi-Armed Bandit and Reinforcement Learning
Problems", JMLR 7, 2006), on paired ratios and with the best K instead of the best one: who is
clearly slower than K others leaves. One of the K truly best can only leave if somebody truly slower
was called clearly faster, which are K · (candidates - 1) statements a look; each gets its share of
the 5 %.

Blocks are independent of the decisions: a block's order and inputs are drawn anew, and whoever is
still in meets all others who are still in on the same kind of inputs.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.measure import stats
from harness.measure.stats import Interval

ERROR = 1 - stats.LEVEL
#: Looks of `--until`, each at 1.6 times the blocks of the one before: 27 times the suite's,
#: or MOST_BLOCKS, at most.
UNTIL_LOOKS = 8
UNTIL_GROWTH = 1.6
#: Looks of `--race`, as shares of the suite's blocks; at 4 blocks nothing is trimmed yet.
RACE_SHARES = (0.2, 0.45, 0.7, 1.0)
FEWEST_BLOCKS = 4
ANY_LEVEL = 0.9  # where only the value is asked for
TIME_LIMIT_S = 900.0

#: config → entry → block → time
Times = Mapping[str, Mapping[str, Mapping[int, float]]]


@dataclass(frozen=True)
class StoppingRule:
    """What was asked for; without `until_pct` and `race` every entrant gets the suite's blocks."""

    until_pct: float | None = None  # neighbours are told apart, or equal within this
    race: int | None = None  # so many places are raced for
    time_limit_s: float = TIME_LIMIT_S  # of the timed part; the suite's own blocks are not cut

    @property
    def adaptive(self) -> bool:
        """Whether entrants may end with different numbers of blocks."""
        return self.until_pct is not None or self.race is not None

    @property
    def name(self) -> str:
        """`race 3, until 0.3 %`."""
        parts = [f"race {self.race}"] if self.race is not None else []
        parts += [f"until {self.until_pct:g} %"] if self.until_pct is not None else []
        return ", ".join(parts)

    def looks(self, blocks: int) -> tuple[int, ...]:
        """Numbers of blocks at which the run looks; `blocks`: the suite's."""
        race = {max(round(share * blocks), FEWEST_BLOCKS) for share in RACE_SHARES}
        grown = (round(blocks * UNTIL_GROWTH**look) for look in range(UNTIL_LOOKS))
        until = {min(look, stats.MOST_BLOCKS) for look in grown}
        chosen = {min(look, blocks) for look in race} if self.race is not None else set()
        chosen |= until if self.until_pct is not None else set()
        return tuple(sorted(chosen)) or (blocks,)


FIXED = StoppingRule()


def level_of(looks: int) -> float:
    """Level of each interval where `looks` of them may end the run; 95 % with one."""
    return 1 - ERROR / max(looks, 1)


def direct(times: Times, a: str, b: str, level: float) -> Interval | None:
    """How many times faster `a` is than `b`: geometric mean of the paired ratios of all configs."""
    each = [stats.speedup(of.get(b, {}), of.get(a, {}), level) for of in times.values()]
    return stats.geomean_of_all(each)


def order(times: Times, entries: Collection[str], base: str) -> list[str]:
    """`entries` from fast to slow by their paired speed-up over `base`, if they have one."""
    even = Interval(1, 1, 1)
    each = ((e, even if e == base else direct(times, e, base, ANY_LEVEL)) for e in entries)
    scores = {entry: over.value for entry, over in each if over}
    return sorted(scores, key=lambda entry: (-scores[entry], entry))


@dataclass(frozen=True)
class Pair:
    """Two neighbours in the ranking and what is known of them."""

    faster: str
    slower: str
    found: Interval  # of faster over slower, at the level of the looks

    def word(self, until_pct: float) -> str:
        """`apart`, `equal` (the whole interval within the resolution), or `open`."""
        if not self.found.holds(1.0):
            return "apart"
        within = 1 + until_pct / 100
        return "equal" if self.found.high <= within and self.found.low >= 1 / within else "open"


def neighbours(times: Times, ranking: Sequence[str], level: float) -> list[Pair]:
    """Each entry of the ranking and the next one."""
    known = ((*pair, direct(times, *pair, level)) for pair in itertools.pairwise(ranking))
    return [Pair(faster, slower, found) for faster, slower, found in known if found]


def race_level(places: int, candidates: int, looks: int) -> float:
    """Level of the two-sided interval whose lower side carries one statement's error."""
    statements = places * max(candidates - 1, 1)
    return 1 - 2 * ERROR / (statements * max(looks, 1))


def losses(times: Times, ranking: Sequence[str], places: int, level: float) -> dict[str, str]:
    """Who leaves, being clearly slower than `places` others: `7.1 % slower than mine`.

    `ranking`: everybody who races for the places, from fast to slow.
    """
    found: dict[str, str] = {}
    for at, entry in enumerate(ranking):
        known = ((rival, direct(times, rival, entry, level)) for rival in ranking[:at])
        faster = ((rival, ratio.value) for rival, ratio in known if ratio and ratio.low > 1.0)
        for rival, value in itertools.islice(faster, places - 1, places):
            found[entry] = f"{100 * (value - 1):.1f} % slower than {rival}"
    return found
