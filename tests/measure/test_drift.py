"""What the machine did: drift of the pace, clocks, and energy as far as a coarse counter tells."""

from __future__ import annotations

import numpy as np
import pytest

from harness.measure import drift, stats
from harness.schema import Sample, Telemetry
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
    assert drift.drift_pct(control(0.0)) is None
    assert drift.drift_pct(control(0.06)) == pytest.approx(4.0, abs=0.5)
    assert drift.drift_pct([]) is None
    disturbed = [s.model_copy(update={"late": s.block >= 14}) for s in control(0.06)]
    told = drift.drift_pct(disturbed)
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
    told = drift.unstable_because(H200, control(change), readings)
    assert told.startswith(why) if not why else why in told
    assert drift.unstable_because(CPU, control(change), readings) == ""


def test_one_bad_reading_is_not_an_unsound_run() -> None:
    readings = [Telemetry(throttle=("hw_slowdown",)), *[Telemetry()] * 19]
    assert drift.unstable_because(H200, control(0.0), readings) == ""


def test_the_clock_is_the_median_that_was_read() -> None:
    samples = [sample(n, sm_mhz=1980 if n % 2 else 1500) for n in range(5)]
    assert drift.clock_mhz(samples) == 1500
    assert drift.clock_mhz([sample(0)]) is None


def metered(rng: np.random.Generator, blocks: int, busy_s: float) -> list[float]:
    """Turns of 80 ms and `busy_s` on a counter that steps every COUNTER_PERIOD_S."""
    found = []
    for _ in range(blocks):
        start = rng.uniform(0, 10)
        steps = np.floor(np.array([start, start + 0.08 + busy_s]) / COUNTER_PERIOD_S)
        found.append(float(np.diff(steps)[0]) * COUNTER_PERIOD_S * POWER_W)
    return found


def test_a_coarse_counter_is_unbiased_and_told_only_when_it_is_narrow() -> None:
    rng = np.random.default_rng(32)
    truth_j = 0.001 * POWER_W  # a call of 1 ms
    held = narrow = 0
    for blocks in (20, 20, 20, 20, 600, 600, 600, 600):
        null = dict(enumerate(metered(rng, blocks, 0.0)))
        mine = metered(rng, blocks, 0.008)
        told = drift.energy([sample(n, energy_j=j) for n, j in enumerate(mine)], null)
        assert told is not None
        held += told.low_j <= truth_j <= told.high_j
        narrow += (told.joules_per_call is not None) == (blocks == 600)
    assert held >= 7
    assert narrow == 8


def test_energy_needs_a_counter_and_some_blocks() -> None:
    assert drift.energy([sample(n) for n in range(20)], dict.fromkeys(range(20), 1.0)) is None
    few = [sample(n, energy_j=9.0) for n in range(4)]
    assert drift.energy(few, dict.fromkeys(range(20), 1.0)) is None
    assert drift.energy([sample(n, energy_j=9.0) for n in range(20)], {}) is None


def test_half_width_is_students() -> None:
    assert stats.mean_half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)
    with pytest.raises(ValueError, match="two"):
        stats.mean_half_width([1.0])
