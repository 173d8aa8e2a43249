"""The simulated race: its noise is the record's, and it costs less than the full run it agrees with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import racing
from harness.catalog.suites import load_suite

SUITE = load_suite("fa3", Path(__file__).resolve().parents[2] / "configs")


def test_noise_is_what_the_record_scatters_by() -> None:
    noise = racing.noise_of(racing.best_records())
    assert {one.config for one in noise} == {case.name for case in SUITE.cases}
    for one in noise:
        assert 0.0005 < np.std(one.residuals) < 0.01
        assert abs(np.median(one.residuals)) < 0.0005
        assert one.turn_ms(0.0) == pytest.approx(one.gap_ms + one.calls * one.best_ms)


def test_a_race_agrees_with_the_full_run_for_less() -> None:
    noise = racing.noise_of(racing.best_records())
    wide = racing.FIELDS["wide: up to twice as slow"]
    told = racing.one_race(1, wide, 16, noise, SUITE)
    assert told.same
    assert 0.3 < told.share < 0.5
    assert 4 <= told.mean_blocks < 9
