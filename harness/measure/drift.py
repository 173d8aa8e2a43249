"""What the machine did while blocks were timed: drift and clocks. Pure.

The control, a trusted kernel that runs in every block, is the golden kernel. Its last third of
blocks against its first third says how far the machine moved between the start and the end of a
case.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.measure import stats
from harness.schema import Machine, Sample, Telemetry

#: Throttle reasons under which no figure is the chip's; sw_power_cap is its daily bread.
UNSOUND = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake"})
UNSOUND_SHARE = 0.5  # of the readings
UNSOUND_DRIFT = 0.10


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
