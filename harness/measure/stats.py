"""Samples → interval. Pure: numpy and scipy only; knows nobody.

One block gives one time per entrant, all taken within a second on the same kind of inputs, so what
moves the machine moves them all. What is compared is therefore the log-ratio inside each block:

    x_b = ln(time of the baseline in block b / time of the entrant in block b)

- value      exp(20 % trimmed mean of x): as sharp as a mean, deaf to a few disturbed blocks
- interval   bootstrap over blocks, percentiles widened for small n (T. Hesterberg, "What Teachers
             Should Know About the Bootstrap", The American Statistician 69, 2015, section 4.3);
             Student's t of the trimmed mean (K. Yuen, Biometrika 61, 1974) below 8 blocks and above
             500, within the blocks where so many lie on one side of the truth more seldom than the
             level allows (all of 6 at 95 %; of more all but a few, at most those trimmed, still
             more seldom), because slow bursts widen a t; and 0.05 % on each side for what blocks
             cannot show: that two processes are not one (2.5 % where two cards are compared through
             a baseline)
- geomean    mean of the configs' logs; the sides of the interval are added in quadrature
             (MOVER: G. Zou, A. Donner, Statistics in Medicine 27, 2008)

The resampled indices depend on the number of blocks alone and come from a generator whose stream
is frozen, so the same samples give the same bytes on every machine.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
else:

    class _Numpy:
        """numpy, imported at its first use: a kernel's verdicts come before the first statistic."""

        def __getattr__(self, name: str) -> Any:
            return getattr(_imported("numpy"), name)

    np = _Numpy()


BLAS_THREADS, SPECIAL = "OPENBLAS_NUM_THREADS", "scipy.special"


@lru_cache
def _imported(name: str) -> Any:
    """A module whose OpenBLAS is to start no threads, of which an entrant could leave us none.

    SPECIAL at the first quantile: that takes longer than a run's other imports.
    """
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    try:
        return importlib.import_module(name)
    finally:
        os.environ.pop(BLAS_THREADS, None)
        if before is not None:
            os.environ[BLAS_THREADS] = before


def get_ready() -> None:
    """Import what the first interval needs, half a second, while nobody waits."""
    _imported(SPECIAL)


LEVEL = 0.95
TRIM = 0.2
RESAMPLES = 4000
FEWEST_TO_RESAMPLE = 8
MOST_TO_RESAMPLE = 500
#: What is added to each side of the logarithm of a ratio between two processes. Blocks see what
#: changes from block to block, not that one process has other addresses than the next: pairs of one
#: kernel lay up to 0.06 % apart, and the same way in every run of the pair
#: (docs/how-timing-works.md).
PROCESS_LOG = 0.0005
#: Which rule an interval was made by; the board makes those of an older rule anew, from the
#: samples. 1: PROCESS_LOG is in it. 2: slow bursts of few blocks do not reach beyond the best. 4:
#: nor, of many blocks, beyond the best but a few; 3 cut deeper and was in no release.
INTERVAL_RULE = 4
#: The same between two cards: one source beside one baseline on two of one kind differed by up to
#: this in 95 of 100 pairs of geometric means (benchmarks/clocks.py --cards), and no block shows it.
CARDS_LOG = 0.025
#: By which a record's interval may reach below its value where it is the standard of a later one:
#: noise costs a trimmed mean nothing. Of 100 rows of an H200 99 have narrower ones.
WIDEST_STANDARD = 0.05
#: More blocks than this is not a plan but a wish.
MOST_BLOCKS = 10_000
MOST_LOG = 700.0  # e^700 is a float, e^710 is none


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval; of ratios unless said otherwise (above 1: faster)."""

    value: float
    low: float
    high: float

    def holds(self, x: float) -> bool:
        """Whether `x` lies inside."""
        return self.low <= x <= self.high


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies of one entrant on one config, in the unit they came in."""

    median: float
    p10: float
    p90: float


# --------------------------------------------------------------------------- one config


def summary(values: Sequence[float]) -> Summary:
    """Median and the 10th and 90th percentile of `values`."""
    ordered = sorted(_finite(values).tolist())
    return Summary(*(_quantile(ordered, share) for share in (0.5, 0.1, 0.9)))


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    return _quantile(sorted(values), 0.5)


def paired_log_ratios(base: Mapping[int, float], entry: Mapping[int, float]) -> Array:
    """ln(base / entry) of every block both were timed in, in the order of the blocks.

    `base`, `entry`: block number → time in the same unit, positive and finite.
    """
    shared = sorted(base.keys() & entry.keys())
    above = _finite([base[block] for block in shared], empty=True)
    below = _finite([entry[block] for block in shared], empty=True)
    if (above <= 0).any() or (below <= 0).any():
        raise ValueError("times must be positive")
    return np.asarray(np.log(above) - np.log(below), dtype=np.float64)


def ratio(
    log_ratios: Sequence[float] | Array, level: float = LEVEL, tight: bool = False
) -> Interval | None:
    """Ratio with its interval; None with fewer than two blocks, where there is no spread.

    `level`: of the interval. Another one than 95 % is Student's t of the trimmed mean for any
    number of blocks, because the far tails of a few thousand resamples are a matter of luck.
    `tight`: what no block gave is not in it, however few they are.
    """
    x = _finite(log_ratios, empty=True)
    if len(x) < 2:
        return None
    centre = float(_trimmed_means(np.sort(x)[None, :])[0])
    if level == LEVEL and FEWEST_TO_RESAMPLE <= len(x) <= MOST_TO_RESAMPLE:
        means = _trimmed_means(np.sort(x[_resampled_indices(len(x))], axis=1))
        tail = _widened_tail(len(x))
        low, high = map(float, np.quantile(means, (tail, 1 - tail)))
    else:
        half = _t_quantile(len(x), level) * _trimmed_error(x)
        low, high = centre - half, centre + half
        if (aside := max(_blocks_aside(len(x), level), 0 if tight else -1)) >= 0:
            ordered = np.sort(x)
            low, high = max(low, float(ordered[aside])), min(high, float(ordered[-1 - aside]))
    # resampling can miss its own centre by a hair when nearly all blocks are equal
    return Interval(_exp(centre), _exp(min(low, centre)), _exp(max(high, centre)))


def speedup(
    base: Mapping[int, float], entry: Mapping[int, float], level: float = LEVEL, tight: bool = False
) -> Interval | None:
    """Time of `base` / time of `entry`, two processes, paired over the blocks they share.

    The interval is PROCESS_LOG wider on each side than the blocks say, unless both are one
    process's.
    """
    found = ratio(paired_log_ratios(base, entry), level, tight)
    if found is None or base == entry:
        return found
    apart = math.exp(PROCESS_LOG)
    return Interval(found.value, found.low / apart, found.high * apart)


def blocks_to_separate(found: Interval, blocks: int) -> int | None:
    """About how many more blocks would put 1 outside `found`, if its value is the truth.

    `found`: a paired ratio (of one config or a geometric mean of several) after `blocks` blocks;
    its width shrinks with the root of their number. 0: 1 is outside already. None: more than
    MOST_BLOCKS would be needed.
    """
    if not found.holds(1.0):
        return 0
    centre = abs(math.log(found.value))
    towards_one = math.log(found.value / found.low if found.value > 1 else found.high / found.value)
    if centre * math.sqrt(MOST_BLOCKS) <= towards_one * math.sqrt(blocks):
        return None
    return max(math.ceil(blocks * (towards_one / centre) ** 2) - blocks, 1)


# --------------------------------------------------------------------------- all configs


def geomean(ratios: Sequence[Interval]) -> Interval:
    """Geometric mean of independent ratios and its interval; all must be finite and positive."""
    if not ratios:
        raise ValueError("a geometric mean needs at least one ratio")
    told = [x for r in ratios for x in (r.low, r.value, r.high)]
    if not all(math.isfinite(x) and x > 0 for x in told):
        raise ValueError("a geometric mean needs finite, positive ratios")
    n = len(ratios)
    centre = math.fsum(math.log(r.value) for r in ratios) / n
    down = math.hypot(*(math.log(r.value / r.low) for r in ratios)) / n
    up = math.hypot(*(math.log(r.high / r.value) for r in ratios)) / n
    return Interval(_exp(centre), _exp(centre - down), _exp(centre + up))


def geomean_of_all(ratios: Sequence[Interval | None]) -> Interval | None:
    """The same; None where one of them is missing, or all are."""
    known = [ratio for ratio in ratios if ratio]
    return geomean(known) if known and len(known) == len(ratios) else None


def quotient(a: Interval, b: Interval, *, one_card: bool = True) -> Interval:
    """A / b of two ratios, each against one baseline (MOVER); CARDS_LOG wider if of two cards."""
    centre = math.log(a.value) - math.log(b.value)  # their quotient may be no float
    down = math.hypot(math.log(a.value / a.low), math.log(b.high / b.value))
    up = math.hypot(math.log(a.high / a.value), math.log(b.value / b.low))
    found = Interval(_exp(centre), _exp(centre - down), _exp(centre + up))
    return found if one_card else across_cards(found)


def standard(then: Interval) -> Interval:
    """An earlier ratio, to hold a later one against: no lower than WIDEST_STANDARD below itself."""
    return Interval(then.value, max(then.value * (1 - WIDEST_STANDARD), then.low), then.high)


def across_cards(found: Interval) -> Interval:
    """The quotient of two ratios that two cards gave, as wide as cards differ."""
    apart = math.exp(CARDS_LOG)
    return Interval(found.value, found.low / apart, found.high * apart)


# ------------------------------------------------------------------------ what a reader must know


def outliers(values: Mapping[int, float], limit: float = 3.5) -> tuple[int, ...]:
    """Blocks whose modified z-score is above `limit` (Iglewicz and Hoaglin, 1993: 3.5).

    The scale is the median absolute deviation, but at least 0.1 % of the median, so that a
    machine which is quiet to the fifth digit does not mark every block.
    """
    if len(values) < 5:
        return ()
    x = _finite(list(values.values()))
    centre = median(x.tolist())
    scale = max(median(np.abs(x - centre).tolist()) / 0.6745, 1e-3 * abs(centre))
    marks = np.abs(x - centre) > limit * scale
    return tuple(block for block, marked in zip(values, marks, strict=True) if marked)


def drift(values: Sequence[float], smallest: float = 0.005) -> float | None:
    """Last third against first third as a signed fraction, or None if it is not to be seen.

    Seen: at least `smallest`, and beyond what chance gives in one of 100 runs (Welch's t).
    """
    x = np.log(_finite(values))
    if (third := len(x) // 3) < 3:
        return None
    first, last = x[:third], x[-third:]
    change = math.expm1(median(last.tolist()) - median(first.tolist()))
    if abs(change) < smallest:
        return None
    if np.ptp(first) == 0 and np.ptp(last) == 0:
        return change
    errors = np.array([first.var(ddof=1), last.var(ddof=1)]) / third
    t = abs(float(last.mean() - first.mean())) / math.sqrt(float(errors.sum()))
    freedom = float(errors.sum()) ** 2 / float((errors**2).sum() / (third - 1))
    return change if 2 * _imported(SPECIAL).stdtr(freedom, -t) < 0.01 else None


def modes(values: Sequence[float], smallest: float = 0.005) -> tuple[float, float] | None:
    """The two medians where the values fall into two camps, else None.

    The sorted logs are cut where the two camps' inner squares are smallest. They count as camps
    when each holds a fifth of the values, their medians differ by `smallest` or more, and they
    lie further apart than 6 of their own deviations (a cut normal sample lies at about 2.7).
    """
    x = np.sort(np.log(_finite(values)))
    if len(x) < 12:
        return None
    n, margin = len(x), math.ceil(len(x) / 5)
    left = np.arange(margin, n - margin + 1)  # how many values lie left of each possible cut
    total = np.cumsum(x)[left - 1]
    # the inner squares are smallest where the squares between the camps are largest
    between = (total - left * x.mean()) ** 2 / (left * (n - left))
    cut = int(left[np.argmax(between)])
    low, high = x[:cut], x[cut:]
    apart = float(high.mean() - low.mean())
    within = math.sqrt(float(low.var() * len(low) + high.var() * len(high)) / len(x))
    if math.expm1(apart) < smallest or apart < 6 * within:
        return None
    return math.exp(median(low.tolist())), math.exp(median(high.tolist()))


def findings(times_ms: Mapping[int, float]) -> Mapping[str, str]:
    """What a reader must know of one entrant's blocks (number → ms): bimodal, drift, outliers.

    Each in words; nothing is dropped because of it.
    """
    return _findings(tuple(sorted(times_ms.items())))


@lru_cache(maxsize=1 << 14)  # the board and the page ask for the same
def _findings(times_ms: tuple[tuple[int, float], ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    values = [time for _, time in times_ms]
    if camps := modes(values) if values else None:
        found["bimodal"] = f"two camps of times, about {camps[0]:.4g} ms and {camps[1]:.4g} ms"
    change = drift(values) if values else None
    if change is not None:
        slower = "slower" if change > 0 else "faster"
        found["drift"] = f"the last third is {abs(change):.1%} {slower} than the first"
    if marked := () if camps else outliers(dict(times_ms)):
        found["outliers"] = f"{len(marked)} of {len(values)} blocks lie far from the rest"
    return found


# --------------------------------------------------------------------------- the arithmetic below


def _exp(log: float) -> float:
    """e^log, kept finite and above zero: two noisy blocks can reach beyond a float."""
    return math.exp(min(max(log, -MOST_LOG), MOST_LOG))


def _finite(values: Iterable[float] | Array, empty: bool = False) -> Array:
    x = np.asarray(list(values), dtype=np.float64)
    if not empty and len(x) == 0:
        raise ValueError("no values")
    if not np.isfinite(x).all():
        raise ValueError("values must be finite")
    return x


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two neighbours, as numpy's default; plain floats are faster when few."""
    if not ordered:
        raise ValueError("no values")
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def cut(n: int) -> int:
    """How many values are trimmed on each side of n."""
    return int(TRIM * n + 1e-9)


def _trimmed_means(sorted_rows: Array) -> Array:
    n = sorted_rows.shape[1]
    return np.asarray(sorted_rows[:, cut(n) : n - cut(n)].mean(axis=1))


def _trimmed_error(x: Array) -> float:
    """Standard error of the trimmed mean: winsorized deviation over the share that is kept."""
    n, g = len(x), cut(len(x))
    ordered = np.sort(x)
    winsorized = np.clip(ordered, ordered[g], ordered[n - 1 - g])
    return float(winsorized.std(ddof=1)) / ((1 - 2 * g / n) * math.sqrt(n))


@lru_cache(maxsize=1 << 12)  # scipy takes longer for one quantile than numpy for the blocks
def _t_quantile(n: int, level: float) -> float:
    return float(_imported(SPECIAL).stdtrit(n - 2 * cut(n) - 1, 0.5 + level / 2))


@lru_cache(maxsize=1 << 12)
def _blocks_aside(n: int, level: float) -> int:
    """How many of n blocks may lie beyond each end of the interval; -1: it needs more blocks.

    As many as lie on one side of a median in a quarter of the runs that may miss it, so that the
    level is kept beside Student's t, but none of which the trimmed mean is made: it need not be the
    median. None where all on one side are seldom enough by themselves.
    """
    shares = _imported(SPECIAL).bdtr(np.arange(n // 2), n, 0.5)  # of up to so many on one side
    few = int(np.count_nonzero(2 * shares <= (1 - level) / 4)) - 1
    return max(min(few, cut(n)), 0 if 2.0 ** (1 - n) <= 1 - level else -1)


@lru_cache(maxsize=8)
def _resampled_indices(n: int) -> NDArray[np.intp]:
    """(resamples, n) indices; RandomState's stream is frozen for good, a Generator's is not."""
    rows = min(RESAMPLES, max(400, 1_000_000 // n))
    return (np.random.RandomState(n).random_sample((rows, n)) * n).astype(np.intp)


@lru_cache(maxsize=64)
def _widened_tail(n: int) -> float:
    """Share of resamples to leave out on each side so that n blocks cover what they promise."""
    t = math.sqrt(n / (n - 1)) * float(_imported(SPECIAL).stdtrit(n - 1, 0.5 + LEVEL / 2))
    return float(_imported(SPECIAL).ndtr(-t))
