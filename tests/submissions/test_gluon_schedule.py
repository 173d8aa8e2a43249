"""The host side of gluon_champion: which program attends which q tile."""

import sys
from itertools import chain
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "submissions/gluon_champion"))
schedule = pytest.importorskip("schedule")
sys.path.pop(0)

SHAPES = {  # heads, seqlen, block_m, block_n, causal, section, programs
    "hdim64_seq4k": (128, 4096, 256, 64, True, 32, 132),
    "hdim128_seq8k": (32, 8192, 192, 64, True, 8, 132),
    "hdim256_seq16k": (8, 16384, 128, 64, True, 2, 132),
    "one token": (1, 1, 256, 64, True, 1, 1),
    "off the tile, not causal": (3, 333, 192, 64, False, 2, 6),
    "section larger than the heads": (5, 700, 128, 64, True, 64, 30),
}


def keys_seen(item, seqlen, block_m, q_tiles, causal):
    return min((item % q_tiles + 1) * block_m, seqlen) if causal else seqlen


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_tile_once(shape):
    heads, seqlen, block_m, _block_n, _causal, _section, programs = shape
    table = schedule.deal(*shape)
    items = list(chain.from_iterable(row[1 : 1 + row[0]] for row in table))
    assert len(table) == programs
    assert sorted(items) == list(range(heads * -(-seqlen // block_m)))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_have_one_width_and_an_item_to_spare(shape):
    table = schedule.deal(*shape)
    assert len({len(row) for row in table}) == 1
    assert all(row[0] + 2 <= len(row) for row in table)


@pytest.mark.parametrize("name", ["hdim64_seq4k", "hdim128_seq8k", "hdim256_seq16k"])
def test_official_shapes_are_balanced_within_two_percent(name):
    _heads, seqlen, block_m, _block_n, causal, _section, _programs = SHAPES[name]
    q_tiles = -(-seqlen // block_m)
    loads = [
        sum(
            keys_seen(item, seqlen, block_m, q_tiles, causal) + schedule.FIXED_COST_KEYS
            for item in row[1 : 1 + row[0]]
        )
        for row in schedule.deal(*SHAPES[name])
    ]
    assert max(loads) < 1.02 * sum(loads) / len(loads)


def test_longest_tiles_of_a_section_start_first():
    order = list(schedule.work_items(heads=4, q_tiles=3, section=2))
    assert order == [2, 5, 1, 4, 0, 3, 8, 11, 7, 10, 6, 9]
