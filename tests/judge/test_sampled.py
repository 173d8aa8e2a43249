"""What is read at "done" must be what is copied afterwards, and a hostile table reads nothing else."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from harness.judge.sampled import Sampled  # noqa: E402

SIZE = 64 * 1024  # bytes of one output
ROOM = 4 * SIZE


@pytest.fixture
def room():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (ROOM,), dtype=torch.uint8, generator=generator)


def taken(room, offsets):
    sampled = Sampled(room, torch.tensor(offsets), [SIZE] * len(offsets))
    sampled.take()
    return sampled


def outputs(room, offsets):
    return [room[at : at + SIZE].clone() for at in offsets]


def test_outputs_that_stay_agree(room):
    sampled = taken(room, [SIZE, 0, 3 * SIZE])
    assert sampled.offsets == [SIZE, 0, 3 * SIZE]
    assert sampled.differing(outputs(room, sampled.offsets)) is None


def test_one_row_in_a_hundred_written_later_is_seen(room):
    offsets = [0, SIZE]
    sampled = taken(room, offsets)
    rows = room[SIZE : 2 * SIZE].view(-1, 128)
    rows[::100] ^= 255
    assert sampled.differing(outputs(room, offsets)) == 1


def test_the_table_is_read_once(room):
    table = torch.tensor([0])
    sampled = Sampled(room, table, [SIZE])
    sampled.take()
    table[0] = SIZE
    assert sampled.offsets == [0]


@pytest.mark.parametrize("offset", [-1, -(2**63), ROOM - 1, ROOM, 2**63 - 1])
def test_an_offset_out_of_bounds_reads_inside_the_room(room, offset):
    assert taken(room, [offset]).offsets == [offset]  # told as it is: the desk refuses it


def test_small_outputs_and_many():
    room = torch.zeros(1024, dtype=torch.uint8)
    sampled = taken_small(room)
    assert sampled.differing([room[i * 4 : i * 4 + 4].clone() for i in range(256)]) is None


def taken_small(room):
    sampled = Sampled(room, torch.arange(256) * 4, [4] * 256)
    sampled.take()
    return sampled
