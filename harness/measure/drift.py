"""What the machine did while blocks were timed: drift, clocks, energy. Pure.

Drift: the control, a trusted kernel that runs in every block, is the golden kernel. Its last third
of blocks against its first third says how far the machine moved between the start and the end of a
case.

Energy: NVML counts millijoules, and steps every 10 to 100 ms, while a burst works for some 7 ms
inside a turn of about ten times that. So one turn says nothing of a kernel. But turns fall on the
counter's steps at random, so the mean over the blocks is unbiased, and the null kernel's turn holds
the same copies, checks and messages without the call. What a call costs is therefore

    (mean energy of the entrant's turns - mean energy of the null kernel's turns) / K

with Student's interval over the blocks. It is told only where the interval is narrow; a few dozen
blocks are seldom enough for that, a run with `--until` may be. (How such counters are sampled: Z.
Yang, K. Adamek, W. Armour, "Part-time Power Measurements: nvidia-smi's Lack of Attention", SC
2024.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.measure import stats
from harness.schema import Energy, Machine, Sample, Telemetry

#: Throttle reasons under which no figure is the chip's; sw_power_cap is its daily bread.
UNSOUND = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake"})
UNSOUND_SHARE = 0.5  # of the readings
UNSOUND_DRIFT = 0.10
NARROW_PCT = 25.0  # half-width up to which joules a call are told
FEWEST_BLOCKS = 8


def drift_pct(control: Sequence[Sample]) -> float | None:
    """How much slower the control was in its last third than in its first; None if unseen."""
    if not control:
        return None
    change = stats.drift([sample.latency_ms for sample in control if not sample.late] or [1.0])
    return None if change is None else 100 * change


def unstable_because(
    machine: Machine, control: Sequence[Sample], readings: Sequence[Telemetry]
) -> str:
    """Why nothing measured in these blocks says what the chip can do, or an empty string."""
    if not machine.has_gpu:
        return ""
    for reason in sorted(UNSOUND):
        times = sum(reason in reading.throttle for reading in readings)
        if times > UNSOUND_SHARE * len(readings):
            return f"clocks held down by {reason} in {times} of {len(readings)} readings"
    drifted = drift_pct(control)
    if drifted is not None and abs(drifted) > 100 * UNSOUND_DRIFT:
        word = "slower" if drifted > 0 else "faster"
        return f"the trusted baseline became {abs(drifted):.0f} % {word} from start to end"
    return ""


def clock_mhz(samples: Sequence[Sample]) -> float | None:
    """Median SM clock right behind the scored bursts; None where no clock was read."""
    told = [float(sample.sm_mhz) for sample in samples if sample.sm_mhz and not sample.late]
    return stats.median(told) if told else None


def energy(samples: Sequence[Sample], null_j: Mapping[int, float]) -> Energy | None:
    """Joules a call, above the null kernel's turn of the same block; None without a counter."""
    both = [
        (sample.energy_j - null_j[sample.block]) / len(sample.calls_ms)
        for sample in samples
        if sample.energy_j is not None and sample.block in null_j and not sample.late
    ]
    if len(both) < FEWEST_BLOCKS:
        return None
    mean = math.fsum(both) / len(both)
    half = stats.mean_half_width(both)
    narrow = mean > 0 and 100 * half <= NARROW_PCT * mean
    return Energy(joules_per_call=mean if narrow else None, low_j=mean - half, high_j=mean + half)
