"""benchmarks/queue_model.py: who takes which item when, on schedules short enough to do by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from queue_model import CONFIGS, Config, finish, imbalance


def test_a_reserve_is_not_handed_on():
    """Two SMs, items of 8, 1, 4 and 4 tiles: asked for early, the third is bound to the SM that has the first."""
    assert finish([8, 1, 4, 4], 2, 0, late=False) == [12, 5]
    assert finish([8, 1, 4, 4], 2, 0, late=True) == [8, 9]


def test_an_item_that_fills_up_a_section_costs_nothing():
    assert finish([2, 0, 2, 0], 1, 1, late=True) == [6]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("late", [False, True])
def test_all_the_work_is_done_once(name: str, late: bool):
    tiles = CONFIGS[name].items(32)
    assert sum(finish(tiles, 1, 0, late)) == sum(tiles)
    ends = finish(tiles, 132, 1.5, late)
    assert 1 <= imbalance(ends) < 1.2


def test_items_run_longest_first_within_a_section():
    config = Config(heads=3, seqlen=256, headdim=64, rows=64, keys=64)
    assert config.section(1024) == 2
    assert config.items(1024) == [4, 4, 3, 3, 2, 2, 1, 1, 4, 0, 3, 0, 2, 0, 1, 0]


def test_the_shortest_items_of_all_heads_come_last():
    config = Config(heads=3, seqlen=256, headdim=64, rows=64, keys=64, short_last=True)
    assert config.items(1024) == [4, 4, 3, 3, 4, 0, 3, 0, 2, 2, 2, 0, 1, 1, 1, 0]
