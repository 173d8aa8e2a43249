"""stats: intervals that hold what they promise, and slow-downs that are seen."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from harness.measure import stats
from harness.measure.stats import Interval
from harness.process.project import HOME

#: One block's deviation of the paired log-ratio on an H200: quiet, usual, noisy.
NOISES = (0.005, 0.009, 0.024)

log_ratios = st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=60)


def block_times(
    rng: np.random.Generator, factor: float, noise: float, blocks: int = 20
) -> tuple[dict[int, float], dict[int, float]]:
    """Baseline and entrant under shared drift, each with half of the pair's variance."""
    shared = np.cumsum(rng.normal(0, 0.01, blocks))
    own = rng.normal(0, noise / math.sqrt(2), (2, blocks))
    base, entry = np.exp(shared + own) * np.array([[1.0], [factor]])
    return dict(enumerate(base)), dict(enumerate(entry))


# --------------------------------------------------------------------------- one ratio


@given(log_ratios)
def test_the_value_lies_in_its_interval(x: list[float]) -> None:
    found = stats.ratio(x)
    assert found is not None
    assert 0 < found.low <= found.value <= found.high < math.inf


@given(log_ratios)
def test_the_same_samples_give_the_same_bits(x: list[float]) -> None:
    assert stats.ratio(x) == stats.ratio(list(x))


@given(log_ratios, st.floats(-1, 1))
def test_a_constant_factor_moves_everything_by_it(x: list[float], shift: float) -> None:
    before, after = stats.ratio(x), stats.ratio([value + shift for value in x])
    assert before is not None
    assert after is not None
    for name in ("value", "low", "high"):
        assert math.log(getattr(after, name)) == pytest.approx(
            math.log(getattr(before, name)) + shift, abs=1e-9
        )


@given(st.floats(-0.3, 0.3), st.integers(2, 40))
def test_equal_blocks_give_a_point(x: float, blocks: int) -> None:
    found = stats.ratio([x] * blocks)
    assert found is not None
    assert found.low == pytest.approx(found.high) == pytest.approx(math.exp(x))


def test_one_block_has_no_interval() -> None:
    assert stats.ratio([0.1]) is None
    assert stats.ratio([]) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        stats.ratio([0.0, 0.1, bad])


def test_a_time_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        stats.speedup({0: 1.0}, {0: 0.0})


def test_only_shared_blocks_are_paired() -> None:
    base, entry = {0: 2.0, 1: 2.0, 2: 9.0}, {2: 9.0, 1: 1.0, 7: 5.0}
    assert stats.paired_log_ratios(base, entry) == pytest.approx([math.log(2), 0.0])


def test_shared_drift_cancels() -> None:
    drift = np.exp(np.linspace(0, 0.3, 20))
    base = dict(enumerate(drift))
    entry = {block: 0.5 * time for block, time in base.items()}
    found = stats.ratio(stats.paired_log_ratios(base, entry))
    assert found is not None
    assert found.high - found.low < 1e-10
    assert found.value == pytest.approx(2)


def test_two_noisy_blocks_at_a_strict_level_are_a_wide_interval_and_no_overflow() -> None:
    found = stats.ratio([0.5, -0.5], level=0.99999)
    assert found is not None
    assert 0 < found.low < 1e-100
    assert 1e100 < found.high < math.inf
    assert stats.geomean([found, found]).holds(1.0)
    assert stats.quotient(found, found).holds(1.0)


def test_four_wild_blocks_of_twenty_do_not_move_the_value() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 0.003, 20)
    x[[2, 9, 11, 17]] -= 0.5
    found = stats.ratio(x)
    assert found is not None
    assert found.value == pytest.approx(1, abs=0.004)


@pytest.mark.parametrize("blocks", [3, 5, 6, 8, 12, 20, 40])
@pytest.mark.parametrize("noise", NOISES)
def test_the_interval_covers_what_it_promises(blocks: int, noise: float) -> None:
    """95 % nominal; 400 tries have a deviation of 1.1 %, so 90.5 % is four of them away."""
    rng = np.random.default_rng(blocks)
    hits = 0
    for _ in range(400):
        found = stats.speedup(*block_times(rng, 1.0, noise, blocks))
        assert found is not None
        hits += found.holds(1.0)
    assert 0.905 <= hits / 400 <= 1.0


@pytest.mark.parametrize("blocks", [9, 14, 32, 51])
def test_that_a_few_blocks_lie_beyond_it_costs_no_level(blocks: int) -> None:
    """98.75 % nominal; 2,000 tries have a deviation of 0.25 %: four of them, and 0.25 % of the t."""
    rng = np.random.default_rng(blocks)
    found = [stats.ratio(x, 0.9875) for x in rng.normal(size=(2000, blocks))]
    hits = sum(interval.holds(1.0) for interval in found if interval)
    assert hits >= 2000 * 0.975


@pytest.mark.parametrize("blocks", [51, 131, 501])
def test_two_camps_of_times_leave_an_interval_on_both_sides(blocks: int) -> None:
    """Their mean is no median, so blocks set aside by a sign test do not bound it."""
    x = [-0.05 * (block % 3 == 0) + 1e-4 * (block % 7) for block in range(blocks)]
    found = stats.ratio(x, 0.99375)
    assert found is not None
    assert found.low / 0.999 < found.value < found.high / 1.001


def test_the_interval_covers_bursty_noise_too() -> None:
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(400):
        x = rng.normal(0, 0.005, 20) + (rng.random(20) < 0.08) * rng.normal(0, 0.03, 20)
        found = stats.ratio(x)
        assert found is not None
        hits += found.holds(1.0)
    assert hits / 400 >= 0.905


@given(st.lists(st.floats(-0.5, 0.5), min_size=12, max_size=40), st.sampled_from((0.95, 0.9991)))
def test_the_interval_holds_nothing_that_no_block_gave(x: list[float], level: float) -> None:
    for few in (x, x[:6]) if level == stats.LEVEL else (x,):
        found = stats.ratio(few, level)
        assert found is not None
        within = math.exp(min(few)) * (1 - 1e-9), math.exp(max(few)) * (1 + 1e-9)
        assert within[0] <= found.low <= found.high <= within[1]


def test_slow_bursts_of_few_blocks_do_not_hide_who_is_slower() -> None:
    """Two of six, or every fourth of a race: by the deviation alone it may be faster."""
    slow = [-0.1, -0.1, -0.1, -0.1, -0.5, -0.5]
    raced = [-0.1 - 0.5 * (block % 4 == 1) for block in range(20)]
    told_short = [-0.1 - 0.5 * (block % 4 == 1) + 0.2 * (block % 8 == 3) for block in range(32)]
    for x, level in ((slow, stats.LEVEL), (raced, 0.9875), (told_short, 0.9875)):
        found = stats.ratio(x, level)
        assert found is not None
        assert found.high == pytest.approx(math.exp(-0.1))


@pytest.mark.parametrize(("few", "level"), [(3, 0.95), (5, 0.95), (7, 0.9875), (11, 0.9991)])
def test_where_all_blocks_may_lie_on_one_side_the_truth_may_lie_beyond(
    few: int, level: float
) -> None:
    """Of five blocks one run in 16 has all on one side of it, of six one in 32."""
    x = [0.01 * (block + 1) for block in range(few)]
    found, inside = stats.ratio(x, level), stats.ratio(x, level, tight=True)
    assert found is not None
    assert inside is not None
    assert (inside.low, inside.high) == pytest.approx((math.exp(x[0]), math.exp(x[-1])))
    assert found.low < inside.low <= inside.high < found.high


# --------------------------------------------------------------------------- A/A and slow-downs


def test_the_same_kernel_twice_is_a_tie_in_36_of_40_runs() -> None:
    rng = np.random.default_rng(11)
    found = [stats.speedup(*block_times(rng, 1.0, 0.008)) for _ in range(40)]
    assert sum(one is not None and one.holds(1.0) for one in found) >= 36
    widths = [(one.high - one.low) / one.value for one in found if one]
    assert float(np.median(widths)) <= 0.01


def test_two_processes_that_differ_by_a_hair_in_every_block_are_a_tie() -> None:
    base = dict.fromkeys(range(20), 1.0)
    assert stats.speedup(base, dict.fromkeys(range(20), 1.0004)).holds(1.0)
    assert not stats.speedup(base, dict.fromkeys(range(20), 1.0006)).holds(1.0)


def test_a_process_beside_itself_has_no_width() -> None:
    base = dict(enumerate([1.0, 1.1, 0.9]))
    assert stats.speedup(base, dict(base)) == stats.Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize(("slower", "noise"), [(0.01, 0.005), (0.02, 0.009), (0.05, 0.024)])
def test_a_slow_down_is_seen(slower: float, noise: float) -> None:
    rng = np.random.default_rng(12)
    seen = 0
    for _ in range(100):
        found = stats.speedup(*block_times(rng, 1 + slower, noise))
        assert found is not None
        seen += found.high < 1
    assert seen >= 99


@pytest.mark.parametrize("slower", [0.01, 0.02, 0.05])
def test_a_slow_down_is_measured_without_bias(slower: float) -> None:
    rng = np.random.default_rng(13)
    values = []
    for _ in range(200):
        found = stats.speedup(*block_times(rng, 1 + slower, 0.009))
        assert found is not None
        values.append(1 / found.value - 1)
    assert float(np.mean(values)) == pytest.approx(slower, abs=0.0008)


# --------------------------------------------------------------------------- geomean, ties


def test_geomean_is_the_mean_of_the_logs() -> None:
    found = stats.geomean([Interval(2, 2, 2), Interval(8, 8, 8)])
    assert found == Interval(pytest.approx(4), pytest.approx(4), pytest.approx(4))


def test_geomean_of_one_is_itself() -> None:
    one = Interval(1.2, 1.1, 1.4)
    found = stats.geomean([one])
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.2, 1.4))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.floats(1.0001, 1.2))
def test_geomean_is_never_wider_than_its_widest(values: list[float], width: float) -> None:
    ratios = [Interval(v, v / width, v * width) for v in values]
    found = stats.geomean(ratios)
    assert found.low <= found.value <= found.high
    assert found.high / found.low <= width**2 * (1 + 1e-9)


def test_geomean_covers_what_it_promises() -> None:
    rng = np.random.default_rng(14)
    hits = 0
    for _ in range(300):
        ratios = [stats.ratio(rng.normal(0, noise, 20)) for noise in (0.001, 0.009, 0.003)]
        hits += stats.geomean([r for r in ratios if r]).holds(1.0)
    assert hits / 300 >= 0.905


@pytest.mark.parametrize("bad", [Interval(0, 0, 1), Interval(1, 1, math.inf)])
def test_geomean_refuses_what_has_no_log(bad: Interval) -> None:
    with pytest.raises(ValueError, match="finite, positive"), np.errstate(divide="ignore"):
        stats.geomean([Interval(1, 1, 1), bad])


def test_geomean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        stats.geomean([])


def test_quotient_of_a_ratio_with_itself_is_one_and_wider() -> None:
    one = Interval(1.1, 1.09, 1.12)
    found = stats.quotient(one, one)
    assert found.value == pytest.approx(1)
    assert found.holds(1.0)
    assert found.high / found.low > one.high / one.low


def test_quotient_covers_what_it_promises() -> None:
    rng = np.random.default_rng(15)
    hits = 0
    for _ in range(300):
        a, b = (stats.ratio(rng.normal(0, noise, 20)) for noise in (0.003, 0.009))
        assert a is not None
        assert b is not None
        hits += stats.quotient(a, b).holds(1.0)
    assert hits / 300 >= 0.905


# --------------------------------------------------------------------------- how many more blocks


def test_told_apart_needs_no_more_blocks() -> None:
    assert stats.blocks_to_separate(Interval(1.02, 1.01, 1.03), 20) == 0


def test_four_times_the_blocks_halve_the_width() -> None:
    found = Interval(math.exp(0.01), math.exp(-0.01), math.exp(0.03))
    assert stats.blocks_to_separate(found, 20) == pytest.approx(60, abs=1)
    inverse = Interval(1 / found.value, 1 / found.high, 1 / found.low)
    assert stats.blocks_to_separate(inverse, 20) == pytest.approx(60, abs=1)


def test_no_difference_cannot_be_separated() -> None:
    assert stats.blocks_to_separate(Interval(1.0, 0.99, 1.01), 20) is None


@given(st.floats(0.97, 1.03), st.floats(1.001, 1.05), st.integers(3, 200))
def test_blocks_to_separate_is_zero_or_at_least_one(v: float, width: float, blocks: int) -> None:
    needed = stats.blocks_to_separate(Interval(v, v / width, v * width), blocks)
    assert needed is None or (needed == 0) == (not v / width <= 1 <= v * width)


# ------------------------------------------------------------------------ what a reader must know


def test_summary_of_known_values() -> None:
    assert stats.summary(list(range(1, 12))) == stats.Summary(median=6, p10=2, p90=10)


STARTS_NO_THREAD = """
import os, sys
from harness.measure import stats
assert "numpy" not in sys.modules
stats.drift([1.0 + n % 3 / 100 for n in range(12)] + [2.0] * 6)
stats._imported(stats.SPECIAL).ndtr(0.0)
assert {"numpy", "scipy.special"} <= set(sys.modules)
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize("told", ["", "2"])
def test_the_first_statistic_needs_no_thread(told: str) -> None:
    """Where an entrant had taken them all OpenBLAS ended the run as by Ctrl-C."""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": told}
    if not told:
        del env["OPENBLAS_NUM_THREADS"]
    words = [sys.executable, "-c", STARTS_NO_THREAD]
    done = subprocess.run(words, cwd=HOME, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", told or "None"]


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50))
def test_summary_is_numpys(values: list[float]) -> None:
    low, mid, high = np.percentile(values, (10, 50, 90))
    found = stats.summary(values)
    assert (found.p10, found.median, found.p90) == pytest.approx((low, mid, high), rel=1e-12)
    assert stats.median(values) == found.median


def test_drift_is_welchs() -> None:
    rng = np.random.default_rng(9)
    for _ in range(50):
        x = np.exp(rng.normal(0, 0.01, 21) + np.linspace(0, 0.02, 21))
        p = ttest_ind(np.log(x[:7]), np.log(x[-7:]), equal_var=False).pvalue
        seen = stats.drift(list(x), smallest=0.0)
        assert (seen is not None) == (p < 0.01)


def test_outliers_are_marked_by_their_block() -> None:
    values = {block: 1.0 + 0.001 * (block % 3) for block in range(20)}
    values[13] = 1.2
    assert stats.outliers(values) == (13,)


def test_a_quiet_machine_marks_nothing() -> None:
    values = {block: 1.0 + 1e-7 * (block % 5 == 0) for block in range(20)}
    assert stats.outliers(values) == ()


def test_drift_is_signed() -> None:
    rng = np.random.default_rng(5)
    rising = np.linspace(1, 1.05, 20) * np.exp(rng.normal(0, 0.002, 20))
    change = stats.drift(list(rising))
    assert change is not None
    assert 0.02 < change < 0.05
    falling = stats.drift(list(rising[::-1]))
    assert falling is not None
    assert falling < 0


def test_noise_is_seldom_called_drift_or_two_camps() -> None:
    rng = np.random.default_rng(6)
    samples = [list(np.exp(rng.normal(0, 0.015, 20))) for _ in range(300)]
    assert sum(stats.drift(x) is not None for x in samples) <= 12
    assert sum(stats.modes(x) is not None for x in samples) <= 3


def test_two_camps_are_named() -> None:
    rng = np.random.default_rng(7)
    x = np.exp(rng.normal(0, 0.003, 24))
    x[::2] *= 1.08
    camps = stats.modes(list(x))
    assert camps is not None
    assert camps == pytest.approx((1.0, 1.08), rel=0.01)
    kinds = set(stats.findings(dict(enumerate(x))))
    assert kinds == {"bimodal"}


def test_findings_of_quiet_blocks_are_none() -> None:
    assert stats.findings(dict.fromkeys(range(20), 1.0)) == {}
    assert stats.findings({}) == {}
