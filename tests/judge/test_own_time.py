"""The judge's own part of a burst counts only where it took longer than it need."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from harness.judge.stream import OwnTime


def test_the_usual_part_is_not_the_workers():
    own = OwnTime()
    assert own.beyond("case", 10.0, 0.2) == pytest.approx(9.8)
    assert own.beyond("case", 10.0, 0.2) == pytest.approx(9.8)


def test_who_has_the_gpu_while_words_come_right_has_it_on_the_clock():
    own = OwnTime()
    own.beyond("case", 10.0, 0.2)
    assert own.beyond("case", 10.0, 2.2) == pytest.approx(
        9.8
    )  # 7.8 of calls, 2 taken from the judge


def test_disturbing_ones_own_bursts_moves_nobody_elses():
    own = OwnTime()
    for _ in range(20):
        own.beyond("case", 12.0, 5.0)
    assert own.beyond("case", 10.0, 0.2) == pytest.approx(9.8)
    assert own.beyond("other case", 10.0, 0.4) == pytest.approx(9.6)
