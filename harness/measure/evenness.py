"""Did a worker count its calls as evenly as the GPU ran? Of the pauses between spot checks. Pure.

Who leaves calls out and has the last results right stands still while it makes these, then leaps.
At the power limit an honest kernel is uneven too: some 0.3 s after its first call an H200 runs a
tenth slower for 0.1 to 0.2 s. So a pause has two lengths that are right: as its calls are worth in
ms, and as they are worth in cycles of the SMs at the clock that they ran at meanwhile, which the
judge counts itself. A kernel bound by the tensor cores keeps to the second, one bound by memory to
the first, others lie between; a leap lies outside.
"""

from collections.abc import Sequence

from harness.schema import Pause, Status, Sustained

#: A call may end before a check or behind it, and a check costs the calls beside it some 0.5 ms. Of
#: 337 pauses of six kernels on H200s none was off by over 1.6 ms beyond 1 %, a call included.
SWITCH_MS, PACE_PCT = 1.5, 1.0
#: Every output of a burst is compared; a stretch that is faster per call by more is not believed.
FASTER_THAN_BURSTS_PCT = 3.0
#: Where the clock is not known: in nine stretches of 1.5 s on one H200 no pause was 13 % off.
CLOCK_PCT = 13.0


def lasting(
    told: Sustained, flops: float, burst_ms: float, early: Sequence[Pause] = ()
) -> Sustained:
    """A stretch with the figures that follow from its time and power, or why it has no time.

    burst_ms: the median call of its bursts; 0: nobody is held against them. early: its pauses
    before the calls that count, which no record holds.
    """
    ms = told.latency_ms
    if told.status is not Status.PASSED or not ms:
        return told
    if ms < burst_ms * (1 - FASTER_THAN_BURSTS_PCT / 100):
        said = f"{ms:.4g} ms a call, and {burst_ms:.4g} in its bursts"
        return Sustained(status=Status.TIME_CLAIM_REJECTED, reason=said)
    if leapt := leap(told.pauses) or leap((*early, *told.pauses)):  # a record is asked the first
        said = f"counts by leaps: {leapt.calls} calls in {leapt.spent_ms:.4g} ms, "
        said += f"{ms:.4g} ms each in the mean"
        return Sustained(status=Status.UNSTABLE, reason=said, pauses=told.pauses)
    joules = told.power_w * ms / 1e3 if told.power_w else None
    figures = {
        "reason": "",
        "tflops": flops / ms / 1e9,
        "joules_per_call": joules,
        "pj_per_flop": 1e12 * joules / flops if joules else None,
    }
    return told.model_copy(update=figures)


def leap(pauses: Sequence[Pause]) -> Pause | None:
    """The pause that fits its calls least; None if all fit."""
    excess_ms, worst = max(zip(excesses_ms(pauses), pauses, strict=True), default=(0.0, None))
    return worst if excess_ms > 0 else None


def excesses_ms(pauses: Sequence[Pause]) -> list[float]:
    """By how much each pause is shorter or longer than its calls allow; below 0: it fits."""
    calls = sum(pause.calls for pause in pauses)
    known = all(pause.sm_mhz for pause in pauses)
    call_ms = sum(pause.spent_ms for pause in pauses) / max(1, calls)
    call_cycles = sum(pause.spent_ms * pause.sm_mhz for pause in pauses) / max(1, calls)
    found = []
    for pause in pauses:
        right_ms = [pause.calls * call_ms]
        if known:
            right_ms.append(pause.calls * call_cycles / pause.sm_mhz)
        off_ms = max(min(right_ms) - pause.spent_ms, pause.spent_ms - max(right_ms))
        allowed_pct = PACE_PCT if known else CLOCK_PCT
        found.append(off_ms - call_ms - SWITCH_MS - allowed_pct / 100 * pause.spent_ms)
    return found
