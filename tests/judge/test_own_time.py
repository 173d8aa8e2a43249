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


def test_memory_that_is_placed_badly_is_nobodys_claim():
    """One worker's words take 0.02 ms more to come right, in every burst: hers and nobody else's."""
    own = OwnTime()
    for held_ms in (0.24, 0.221, 0.22):
        own.rehearsed("case", "slow", held_ms)
    own.rehearsed("case", "fast", 0.2)
    assert own.beyond("case", 10.2, 0.2, "fast") == pytest.approx(10.0)
    assert own.beyond("case", 10.22, 0.22, "slow") == pytest.approx(10.0)
    assert own.beyond("case", 10.32, 0.32, "slow") == pytest.approx(10.1), "who disturbs it pays"
    assert own.beyond("case", 10.3, 0.3, "fast") == pytest.approx(10.1)
    assert own.beyond("case", 10.22, 0.22, "not rehearsed") == pytest.approx(10.02)
    assert own.beyond("other case", 10.2, 0.2, "slow") == pytest.approx(10.0)


def test_no_more_is_believed_of_memory_than_was_ever_seen():
    own = OwnTime()
    own.rehearsed("case", "slow", 5.2)
    own.rehearsed("case", "fast", 0.2)
    own.beyond("case", 10.2, 0.2, "fast")
    assert own.beyond("case", 15.2, 5.2, "slow") == pytest.approx(15.2 - 0.23)


def test_no_more_is_taken_off_than_it_took():
    own = OwnTime()
    own.rehearsed("case", "slow", 0.5)
    own.rehearsed("case", "fast", 0.2)
    own.beyond("case", 10.2, 0.2, "fast")
    assert own.beyond("case", 10.22, 0.22, "slow") == pytest.approx(10.0)


def test_disturbing_ones_own_bursts_moves_nobody_elses():
    own = OwnTime()
    for _ in range(20):
        own.beyond("case", 12.0, 5.0)
    assert own.beyond("case", 10.0, 0.2) == pytest.approx(9.8)
    assert own.beyond("other case", 10.0, 0.4) == pytest.approx(9.6)
