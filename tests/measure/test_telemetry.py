"""What the GPU says of itself while a run goes on: clocks that drift, energy; and how evenly calls went."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure import verdict
from harness.measure.evenness import lasting, leap
from harness.measure.telemetry import (
    CLOCK_EVERY,
    MOST_ERROR_PCT,
    Reading,
    Recorder,
    mean_clock_mhz,
    mean_power,
)
from harness.schema import Pause, Sample, Status, Sustained, Telemetry
from tests.board.factory import CPU, H200

COUNTER_PERIOD_S = 0.02
POWER_W = 500.0


def sample(block: int, ms: float = 1.0, **changes: object) -> Sample:
    return Sample(block=block, calls_ms=(ms,) * 8, t2_ms=8 * ms + 2, **changes)


def control(change: float, blocks: int = 21) -> list[Sample]:
    rng = np.random.default_rng(31)
    course = np.linspace(0, change, blocks) + rng.normal(0, 0.002, blocks)
    return [sample(n, float(np.exp(x))) for n, x in enumerate(course)]


def test_the_pace_is_the_golden_kernel() -> None:
    assert verdict.drift_pct(control(0.0)) is None
    assert verdict.drift_pct(control(0.06)) == pytest.approx(4.0, abs=0.5)
    assert verdict.drift_pct([]) is None
    disturbed = [s.model_copy(update={"late": s.block >= 14}) for s in control(0.06)]
    told = verdict.drift_pct(disturbed)
    assert told is not None
    assert told < 4.0  # what was disturbed says nothing of the machine's course


@pytest.mark.parametrize(
    ("throttle", "change", "why"),
    [
        ((), 0.0, ""),
        (("sw_power_cap",), 0.06, ""),  # the daily bread of a chip at its limit
        (("hw_thermal",), 0.0, "hw_thermal in 20 of 20"),
        ((), 0.3, "the trusted baseline became 2"),
    ],
)
def test_unsound_blocks_are_named(throttle: tuple[str, ...], change: float, why: str) -> None:
    readings = [Telemetry(throttle=throttle)] * 20
    told = verdict.unstable_because(H200, control(change), readings)
    assert told.startswith(why) if not why else why in told
    assert verdict.unstable_because(CPU, control(change), readings) == ""


def test_one_bad_reading_is_not_an_unsound_run() -> None:
    readings = [Telemetry(throttle=("hw_slowdown",)), *[Telemetry()] * 19]
    assert verdict.unstable_because(H200, control(0.0), readings) == ""


def test_the_clock_is_the_median_that_was_read() -> None:
    samples = [sample(n, sm_mhz=1980 if n % 2 else 1500) for n in range(5)]
    assert verdict.clock_mhz(samples) == 1500
    assert verdict.clock_mhz([sample(0)]) is None


def counter(watts: float, every_s: float, read_s: float, start_j: float = 1e6) -> list[Reading]:
    """Three seconds of a board at `watts` whose counter moves every `every_s`, read every `read_s`."""
    count = int(3 / read_s)
    return [
        Reading(n * read_s, start_j + watts * every_s * int(n * read_s / every_s), 1500)
        for n in range(count)
    ]


@given(
    watts=st.floats(50, 1200),
    every_s=st.floats(0.01, 0.12),
    read_s=st.floats(0.001, 0.01),
    since_s=st.floats(0, 1),
)
def test_a_steady_power_is_found_within_the_error_told(
    watts: float, every_s: float, read_s: float, since_s: float
) -> None:
    found = mean_power(counter(watts, every_s, read_s), since_s, 2.5)
    assert found is not None
    assert abs(found.watts / watts - 1) <= 1.01 * found.error_pct / 100 + 1e-9
    assert found.error_pct <= 2


@given(st.lists(st.floats(0, 0.2), min_size=2, max_size=60), st.integers(0, 59), st.booleans())
def test_a_counter_that_goes_back_never_makes_power(
    gaps_s: list[float], reset: int, full: bool
) -> None:
    """Loaded again it begins at 0, full it wraps: what lies across counts nowhere."""
    times = list(itertools.accumulate(gaps_s))
    begin_j = 2**32 / 1000 - 600 * times[reset % len(times)] if full else 5e5
    told = [Reading(at, (begin_j if n <= reset else 0.0) + 600 * at) for n, at in enumerate(times)]
    found = mean_power(told, 0, 100)
    assert found is None or 0 < found.watts < 600 * 1.2


def test_steps_across_a_reset_are_not_joined() -> None:
    before, after = counter(700, 0.02, 0.005), counter(300, 0.02, 0.005, start_j=0)
    both = before[:400] + [Reading(r.at_s + 2, r.energy_j) for r in after[:100]]
    found = mean_power(both, 0, 100)
    assert found is not None
    assert found.watts == pytest.approx(700, rel=0.01)  # of the longer part


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [Reading(n / 100, None) for n in range(300)],  # no counter
        [Reading(n / 100, 5e5) for n in range(300)],  # one that never moves
        [Reading(n / 100, 5e5 + 700 * (n > 150)) for n in range(300)],  # once
        [Reading(n / 2, 5e5 + 350 * n) for n in range(6)],  # read too seldom to know when
    ],
)
def test_no_power_is_told_where_the_counter_tells_none(readings: list[Reading]) -> None:
    assert mean_power(readings, 0, 3) is None


def test_what_lies_outside_does_not_count() -> None:
    idle, busy = counter(100, 0.02, 0.005)[:200], counter(700, 0.02, 0.005)
    told = idle + [Reading(r.at_s + 1, (r.energy_j or 0) + 100) for r in busy]
    found = mean_power(told, 1.2, 3)
    assert found is not None
    assert found.watts == pytest.approx(700, rel=0.02)
    assert found.error_pct <= MOST_ERROR_PCT


def test_the_clock_is_the_mean_of_readings_inside() -> None:
    told = [Reading(n, None, mhz) for n, mhz in enumerate((1980, 1400, 0, 1500))]
    assert mean_clock_mhz(told, 1, 3) == 1450  # 0: nobody could tell
    assert mean_clock_mhz(told, 7, 9) is None


class Meter:
    """A board of 700 W, on a counter of its own readings; or none."""

    def __init__(self, there: bool = True) -> None:
        self.there, self.read = there, 0

    def energy_j(self) -> float | None:
        self.read += 1
        return 7.0 * self.read if self.there else None

    def sm_mhz(self) -> int:
        return 1500 if self.there else 0


def test_the_recorder_reads_until_its_block_is_over() -> None:
    meter = Meter()
    with Recorder(meter, every_s=0.001) as recorder:
        while meter.read < 2 * CLOCK_EVERY:
            time.sleep(0.001)
    told = [(r.energy_j, r.sm_mhz) for r in recorder.readings]
    clock = [1500 if n % CLOCK_EVERY == 0 else 0 for n in range(meter.read)]
    assert told == [(7.0 * (n + 1), mhz) for n, mhz in enumerate(clock)]
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(recorder.readings))


def test_without_a_gpu_nothing_is_read_twice() -> None:
    meter = Meter(there=False)
    with Recorder(meter, every_s=0.001) as recorder:
        time.sleep(0.02)
    assert recorder.readings == []
    assert meter.read == 1


# --------------------------------------------------------------------------- pauses of a stretch

CALL_MS = 0.5581
#: (ms, calls, MHz) of `cuda_hopper` on hdim64_seq4k: its clock dips after the ninth pause.
RECORDED = (
    (103.1, 190, 1481), (9.3, 17, 1481), (5.2, 8, 1488), (21.4, 40, 1504), (7.2, 13, 1531),
    (5.1, 9, 1524), (15.6, 28, 1513), (11.4, 21, 1515), (301.4, 554, 1475), (84.4, 136, 1290),
    (137.0, 240, 1402),
)  # fmt: skip


def pauses(*paces, spent_ms=100.0, mhz=(1500.0,)):
    """Of `spent_ms` each, with so many calls; the clocks go round."""
    return [Pause(spent_ms, calls, mhz[n % len(mhz)]) for n, calls in enumerate(paces)]


def recorded(extra=0, at=8):
    """RECORDED, with some calls more in one pause."""
    told = [Pause(*pause) for pause in RECORDED]
    told[at] = told[at]._replace(calls=told[at].calls + extra)
    return told


def test_a_recorded_stretch_whose_clock_dips_has_no_leap():
    assert leap(recorded()) is None


@pytest.mark.parametrize("at", range(len(RECORDED)))
def test_calls_that_were_left_out_show_wherever_they_are_told(at):
    """36 of some 1,250: who skips them is 3 % faster."""
    assert leap(recorded(36, at)) == recorded(36, at)[at]


def test_without_the_clock_the_same_would_be_leaps():
    told = [pause._replace(sm_mhz=1400.0) for pause in recorded()]
    assert leap(told) == told[9]


def test_a_kernel_bound_by_memory_keeps_its_pace_though_the_clock_dips():
    assert leap(pauses(*[100] * 6, mhz=[1545.0, 1350.0, 1335.0, 1600.0, 1650.0, 1500.0])) is None


def test_standing_still_is_no_better_than_leaping():
    told = pauses(100, 100, 90, 100, 100, 100)
    assert leap(told) == told[2]


def test_where_the_clock_is_not_known_it_may_dip():
    assert leap(pauses(103, 103, 89, 90, 110, 105, mhz=[0.0])) is None
    assert leap(pauses(70, 130, 70, 130, 70, 130, mhz=[0.0]))


def test_of_no_pause_nothing_is_said():
    assert leap([]) is None


def stretch(latency_ms: float, told: tuple[Pause, ...]) -> Sustained:
    """One that passed, before its figures are made."""
    return Sustained(
        status=Status.PASSED, latency_ms=latency_ms, claimed_ms=latency_ms, pauses=told, power_w=600.0,
        energy_error_pct=1.0, reason="words of praise",
    )  # fmt: skip


def test_figures_of_a_stretch_follow_from_its_time_and_power() -> None:
    found = lasting(stretch(2.0, tuple(pauses(50, 50))), flops=1e12, burst_ms=2.0)
    assert (found.tflops, found.joules_per_call, found.reason) == (500.0, 1.2, "")
    assert found.pj_per_flop == pytest.approx(1.2)
    assert lasting(stretch(1.9, ()), 1e12, 2.0).status is Status.TIME_CLAIM_REJECTED
    assert lasting(stretch(1.9, ()), 1e12, 0.0).status is Status.PASSED, "a CPU's bursts vary"
    leaps = (Pause(900.0, 45, 1500.0), *pauses(50, 50))
    assert lasting(stretch(2.0, leaps), 1e12, 2.0).status is Status.UNSTABLE
    assert lasting(stretch(2.0, leaps[1:]), 1e12, 2.0, leaps[:1]).status is Status.UNSTABLE


def test_what_counts_is_even_by_itself_whatever_came_before() -> None:
    """A record holds no more than what counts: made again, it told another verdict."""
    early, alone = tuple(pauses(105)), tuple(pauses(100, 100, 106))
    assert leap(alone)
    assert leap((*early, *alone)) is None
    assert lasting(stretch(1.0, alone), 1e12, 1.0, early).status is Status.UNSTABLE
