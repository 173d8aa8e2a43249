"""Who counts as evenly as the SMs run keeps its time; who leaps does not."""

from __future__ import annotations

import pytest

from harness.measure.evenness import leap
from harness.schema import Pause

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
