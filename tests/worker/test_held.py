"""Results stay where they are if nobody else has them, and are copied otherwise."""

from __future__ import annotations

import contextlib
import weakref

import pytest

torch = pytest.importorskip("torch")

from harness.process.cuda.arena_layout import OUTPUT_SHARES, PIECE_BYTES, aligned  # noqa: E402
from harness.worker.held import FIRST_BURSTS, Held, Ring, dense_storage  # noqa: E402

SHAPE = (1, 2, 8, 4)


class Lender:
    """Stands for torch's pool: how often it was entered."""

    def __init__(self):
        self.entries = 0

    @contextlib.contextmanager
    def entered(self):
        self.entries += 1
        yield


class Room:
    """An arena of twelve results: the first four are slots, the others come from the pool."""

    kind = "host"  # until the fixture says otherwise: device memory wants a GPU

    def __init__(self):
        self.room = torch.zeros(12 * 256, dtype=torch.uint8)

    def cut(self, number):
        return self.room[number * 256 : (number + 1) * 256].view(torch.float32).view(SHAPE)


@pytest.fixture
def arena():
    return Room()


@pytest.fixture
def held(arena):
    found = Held(arena)
    found._shared, found._pool, found.sent = True, Lender(), []
    found.send_offsets = lambda: found.sent.append(len(found.tensors))  # streams want a GPU
    return found


def burst(held, results, plan="plan"):
    """One burst; which of the results were copied."""
    held.prepare(plan, [held._arena.cut(slot) for slot in range(len(results))])
    with held.lending():
        for result in results:
            held.keep(result)
    return [
        mine.data_ptr() != result.data_ptr()
        for mine, result in zip(held.tensors, results, strict=True)
    ]


def test_the_first_bursts_of_a_plan_are_copied_and_their_allocations_are_not_ours(held, arena):
    results = [arena.cut(4 + n) for n in range(3)]
    assert burst(held, results) == [True] * 3
    assert burst(held, results) == [True] * 3
    assert held._pool.entries == 0
    assert burst(held, results) == [False] * 3
    assert held._pool.entries == 1
    assert burst(held, results, "another plan") == [True] * 3
    assert held._pool.entries == 1


def test_where_results_lie_is_sent_with_the_last_of_them_before_its_event(held, arena):
    """Behind it, this kept an idle GPU for 0.2 ms: who launches slowly was told a liar."""
    burst(held, [arena.cut(4 + n) for n in range(3)])
    assert held.sent == [3]


def test_memory_that_is_returned_again_is_copied_behind_each_call(held, arena):
    static = arena.cut(5)
    for value in (0.0, 7.0, 14.0):
        held.prepare("plan", [arena.cut(slot) for slot in range(3)])
        with held.lending():
            for call in range(3):
                static.fill_(value + call)
                held.keep(static)
        assert [float(t[0]) for t in held.tensors] == [value, value + 1, value + 2]
    assert held._pool.entries == 0


def test_a_result_outside_the_arena_is_copied(held, arena):
    inside = [arena.cut(4 + n) for n in range(2)]
    for _ in range(FIRST_BURSTS):
        burst(held, inside)
    outside = torch.ones(SHAPE)
    assert burst(held, [inside[0], outside]) == [False, True]
    assert torch.equal(arena.cut(1), outside)  # its slot


def test_a_submission_that_starts_to_reuse_memory_is_noticed(held, arena):
    results = [arena.cut(4 + n) for n in range(2)]
    for _ in range(FIRST_BURSTS):
        burst(held, results)
    assert burst(held, [results[0], results[0]]) == [False, True]
    assert burst(held, results) == [True, True]


def test_strides_are_told_and_holes_are_filled(held, arena):
    held.prepare("plan", [arena.cut(slot) for slot in range(2)])
    transposed = arena.cut(4).view(1, 8, 2, 4).transpose(1, 2)
    assert held.keep(transposed) == transposed.stride()
    padded = torch.ones(1, 2, 8, 6)[..., :4]
    assert held.keep(padded) == (64, 32, 4, 1)
    assert torch.equal(held.tensors[1], torch.ones(64))


def test_another_element_type_is_converted_where_nobody_refuses_it(held, arena):
    held.prepare("plan", [arena.cut(0)])
    held.keep(torch.full(SHAPE, 3, dtype=torch.int32))
    assert torch.equal(held.tensors[0], torch.full((64,), 3.0))


def test_where_nothing_is_shared_results_wait_beside_their_slots(arena):
    held = Held(arena)
    results = [torch.ones(SHAPE), torch.zeros(SHAPE)]
    assert [burst(held, results) for _ in range(3)] == [[True] * 2, [True] * 2, [False] * 2]
    assert not arena.room.any()


def test_dense_storage_of_views():
    x = torch.arange(64.0).view(SHAPE)
    assert torch.equal(dense_storage(x.permute(0, 2, 1, 3)), x.flatten())
    assert dense_storage(x[..., :2]) is None
    assert dense_storage(x[:, :1].expand(1, 2, 8, 4)) is None


@pytest.mark.parametrize("size", [1, 2 << 20, (2 << 20) + 1, 671_088_640])
def test_the_slots_fit_their_share_and_the_pool_has_two(size):
    room = OUTPUT_SHARES * aligned(size, PIECE_BYTES)
    slots = room // OUTPUT_SHARES // PIECE_BYTES * PIECE_BYTES
    assert size <= slots
    assert room - slots >= 2 * size
    assert (room - slots) % PIECE_BYTES == 0


# --------------------------------------------------------------------------- a stretch


class Words:
    """Stands for the driver: what the calls' stream was told to store, in order."""

    def __init__(self):
        self.told = []

    def write_wide_value(self, address, value):
        self.told.append((address, value))

    def write_value(self, address, value):
        self.told.append((address, value))


@pytest.fixture
def ring(held, arena, monkeypatch):
    """A ring of three places; the plan is known to return memory of its own."""
    arena.flag, arena.table = -1, lambda entries: torch.zeros(entries, dtype=torch.int64)
    monkeypatch.setattr("harness.worker.held.CudaDriver", Words)
    for _ in range(FIRST_BURSTS):
        burst(held, [arena.cut(4 + n) for n in range(3)])
    held.prepare("plan", [arena.cut(slot) for slot in range(3)])
    return Ring(held, arena)


def places_told(ring):
    """Place → the cut that it was last told to hold."""
    table = ring._table
    told = [(at, value) for at, value in ring._driver.told if at != -1]
    return {(at - table) // 8: value // 256 for at, value in told}


def test_results_of_a_stretch_stay_and_where_they_lie_is_told_once(ring, arena):
    for call in range(9):
        ring.keep(arena.cut(4 + call % 3), call % 3)
        ring.over(call + 1)
    assert places_told(ring) == {0: 4, 1: 5, 2: 6}
    assert len(ring._driver.told) == 3 + 9
    assert [value for at, value in ring._driver.told if at == -1] == list(range(1, 10))


def test_the_result_of_a_place_is_let_go_before_the_next_call_for_it(ring, arena):
    first = arena.cut(4)
    gone = weakref.ref(first)
    ring.keep(first, 0)
    del first
    assert gone() is not None
    ring.let_go(0)
    assert gone() is None


def test_a_result_that_lies_where_another_still_does_is_copied_to_its_slot(ring, arena):
    static = arena.cut(7)
    ring.keep(static, 0)
    static.fill_(3.0)
    ring.keep(static, 1)
    assert places_told(ring) == {0: 7, 1: 1}
    assert float(arena.cut(1).flatten()[0]) == 3.0


def test_a_result_outside_the_arena_is_copied_in_a_stretch_too(ring, arena):
    ring.keep(torch.full(SHAPE, 2.0), 2)
    assert places_told(ring) == {2: 2}
    assert torch.equal(arena.cut(2), torch.full(SHAPE, 2.0))
