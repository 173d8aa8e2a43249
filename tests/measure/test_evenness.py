"""Who counts as evenly as the SMs run keeps its time; who leaps does not."""

from __future__ import annotations

import pytest

from harness.measure.evenness import uneven
from harness.schema import Pause


def pauses(*paces, spent_ms=100.0, mhz=(1500.0,)):
    """Of 100 ms each, with so many calls; the clocks go round."""
    return [Pause(spent_ms, calls, mhz[n % len(mhz)]) for n, calls in enumerate(paces)]


@pytest.mark.parametrize(("leaps", "share"), [(0, 0), (1, 0), (2, 4 / 6)])
def test_two_uneven_pauses_are_no_evidence_and_four_are(leaps, share):
    """Of six pauses of 100 calls each, `leaps` lack 12 and the next have 12 more."""
    made = [100] * 6
    for at in (1, 3)[:leaps]:
        made[at], made[at + 1] = 88, 112
    assert uneven(pauses(*made)) == share


def test_a_clock_that_dips_makes_no_leaps():
    """Recorded: an H200 at its power limit runs 11 % slower for 0.2 s; three of six are off."""
    made, mhz = [103, 103, 89, 90, 110, 105], [1545.0, 1545.0, 1335.0, 1350.0, 1650.0, 1575.0]
    assert uneven(pauses(*made, mhz=mhz)) == 0
    assert uneven(pauses(*made, mhz=[1500.0])) >= 3 / 6


def test_a_kernel_bound_by_memory_keeps_its_pace_though_the_clock_dips():
    assert uneven(pauses(*[100] * 6, mhz=[1545.0, 1350.0, 1335.0, 1600.0, 1650.0, 1500.0])) == 0


def test_no_clock_excuses_a_leap_that_neither_time_nor_cycles_explain():
    made = [100, 80, 120, 80, 120, 100]
    assert uneven(pauses(*made, mhz=[1500.0, 1545.0, 1455.0])) == 4 / 6


def test_where_the_clock_is_not_known_it_may_dip():
    dip = [103, 103, 89, 90, 110, 105]
    assert uneven(pauses(*dip, mhz=[0.0])) == 0
    assert uneven(pauses(70, 130, 70, 130, 70, 130, mhz=[0.0])) == 1
