"""Inputs are wrong in one word of every row until the judge makes them right, and its own stay right."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from harness.judge.withheld import Withheld  # noqa: E402
from harness.problems import PROBLEMS  # noqa: E402
from harness.schema import Case  # noqa: E402

SHAPE = (2, 3, 16, 8)


def copies(*tensors):
    """A room with a place for each of `tensors`, and the places."""
    room = torch.zeros(sum(t.nbytes for t in tensors), dtype=torch.uint8)
    places, at = [], 0
    for tensor in tensors:
        places.append(room[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        at += tensor.nbytes
    return room, places


def test_every_row_is_wrong_in_one_word_until_revealed():
    q, k = torch.randn(SHAPE, dtype=torch.float16), torch.randn(SHAPE, dtype=torch.float16)
    true = q.clone()
    room, (q_copy, k_copy) = copies(q, k)
    withheld = Withheld([(q, q_copy)], room)
    for source, place in ((q, q_copy), (k, k_copy)):
        place.copy_(source)
    assert ((q_copy != true).sum(-1) == 1).all()
    assert torch.equal(q_copy.abs(), true.abs())  # nothing about it looks wrong
    withheld.reveal()
    assert torch.equal(q_copy, true)
    assert torch.equal(k_copy, k)
    assert not torch.equal(q, true)
    withheld.restore()
    assert torch.equal(q, true)


def test_positions_are_new_each_time_and_use_every_column():
    q = torch.randn((1, 1, 4096, 8), dtype=torch.float16)
    room, (place,) = copies(q)
    columns = []
    for _ in range(2):
        withheld = Withheld([(q, place)], room)
        place.copy_(q)
        withheld.restore()
        columns.append((place != q).int().argmax(-1).flatten())
    assert not torch.equal(*columns)
    assert set(columns[0].tolist()) == set(range(8))


def test_a_call_that_is_asked_twice_is_right_in_both_copies():
    """The last call of a check has the first one's tensors: flipping them twice would leave words wrong."""
    q = torch.randn(SHAPE, dtype=torch.bfloat16)
    true = q.clone()
    room, places = copies(q, q)
    withheld = Withheld([(q, place) for place in places], room)
    for place in places:
        place.copy_(q)
    withheld.reveal()
    withheld.restore()
    assert all(torch.equal(place, true) for place in (*places, q))


def test_nothing_to_withhold_is_fine():
    room, _ = copies(torch.zeros(8, dtype=torch.float16))
    withheld = Withheld([], room)
    withheld.reveal()
    withheld.restore()


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_every_problem_withholds_a_two_byte_argument(name):
    case = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64)
    specs = [spec for spec in PROBLEMS[name].inputs(case) if spec.withheld]
    assert specs
    assert all(spec.dtype in ("fp16", "bf16") for spec in specs)
