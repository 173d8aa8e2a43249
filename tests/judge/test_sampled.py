"""Outputs compared with what was read early, and with libraries' results."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")

from harness.board.rivals import SAME_BITS  # noqa: E402
from harness.judge.numerics import likeness  # noqa: E402
from harness.judge.sampled import Sampled  # noqa: E402
from harness.problems import PROBLEMS  # noqa: E402
from harness.schema import Case, Dtype  # noqa: E402

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


CASE = Case(name="c", batch=1, heads=2, seqlen=256, headdim=64)


def test_the_share_is_of_elements_in_any_layout():
    mine = torch.arange(8, dtype=torch.float16).view(2, 4)
    theirs = mine.clone()
    theirs[0, :2] += 1
    (found,) = likeness([mine.t().contiguous().t()], [("lib", [theirs])]).values()
    assert found == 0.75


def test_of_three_results_the_middle_one_counts():
    ones, zeros = torch.ones(4, dtype=torch.float16), torch.zeros(4, dtype=torch.float16)
    assert likeness([ones] * 3, [("lib", [ones, zeros, ones])]) == {"lib": 1.0}
    assert likeness([ones] * 3, [("lib", [ones, zeros, zeros])]) == {"lib": 0.0}


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_library_is_known_again_and_the_definition_is_not_it(name):
    problem = PROBLEMS[name]
    tensors = importlib.import_module(problem.tensors_module)
    kwargs = problem.kwargs(CASE)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        inputs = tensors.make_inputs(CASE, "normal", generator, torch.device("cpu"), kwargs)
        found = dict(tensors.libraries(inputs, kwargs))
        assert "flash" in found
        own = [result.to(torch.float16) for result in tensors.exact(inputs, kwargs)]
        for library, results in found.items():
            assert len(results) == len(problem.outputs(CASE))
            again = dict(tensors.libraries(inputs, kwargs))
            assert likeness(results, [(library, again[library])])[library] >= SAME_BITS[Dtype.FP16]
        assert max(likeness(own, found.items()).values()) < SAME_BITS[Dtype.FP16]
