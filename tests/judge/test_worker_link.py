"""Outputs are taken from where a worker says they lie, if they lie there and stay as they were."""

from __future__ import annotations

import socket

import pytest

torch = pytest.importorskip("torch")

from harness.cli.selftest.defence import Defence  # noqa: E402
from harness.cli.selftest.stand_ins import standing_in  # noqa: E402
from harness.judge.burst import Patience, WorkerGone, WorkerLink  # noqa: E402
from harness.judge.inputs import Inputs  # noqa: E402
from harness.judge.sampled import Sampled  # noqa: E402
from harness.problems.base import TensorSpec  # noqa: E402
from harness.process import wire  # noqa: E402
from harness.schema import Status, gate_delay_ms  # noqa: E402

SPEC = TensorSpec("o", (1, 2, 64, 8), "fp16")
SIZE = 2 * 64 * 8 * 2  # bytes of one
ASKED = Inputs((), (SPEC,), tensors=[(), ()], references=[], kwargs={}, contract_limit=1.0)


@pytest.fixture
def link():
    """A link whose outputs' room holds four different outputs."""
    ours, theirs = socket.socketpair()
    theirs.close()
    found = WorkerLink(ours, "host", (4096, 4 * SIZE))
    found.outputs.room.view(torch.float16).copy_(torch.arange(2 * SIZE) % 2048)
    yield found
    found.close()


def sampled(link, offsets):
    told = Sampled(link.outputs.room, torch.tensor(offsets), ASKED.output_bytes)
    told.take()
    return told


def test_outputs_come_from_where_they_lie(link):
    first, second = link._taken(ASKED, sampled(link, [SIZE, 0]))
    room = link.outputs.room.view(torch.float16).view(4, 1, 2, 64, 8)
    assert torch.equal(first, room[1])
    assert torch.equal(second, room[0])
    link.outputs.room.zero_()
    assert first.any()  # a copy


@pytest.mark.parametrize("offset", [-2, 1, 3 * SIZE + 2, 4 * SIZE, 2**62, -(2**63)])
def test_a_place_outside_the_room_is_no_output(link, offset):
    with pytest.raises(WorkerGone, match="of its memory") as gone:
        link._taken(ASKED, sampled(link, [0, offset]))
    assert gone.value.report.status is Status.INVALID_SUBMISSION


def test_an_output_that_changes_after_it_was_done_is_wrong(link):
    told = sampled(link, [0, SIZE])
    link.outputs.room[SIZE : 2 * SIZE].view(torch.float16).view(-1, 8)[::4] = -1
    with pytest.raises(WorkerGone, match="output 1 changed after") as gone:
        link._taken(ASKED, told)
    assert gone.value.report.status is Status.INCORRECT


def test_without_the_sample_nobody_would_notice(link):
    told = sampled(link, [0, SIZE])
    link.outputs.room.fill_(0)
    with standing_in(frozenset({Defence.OUTPUT_SAMPLED}), "judge"):
        assert not any(tensor.any() for tensor in link._taken(ASKED, told))


@pytest.mark.parametrize(("calls", "delay_ms"), [(1, 2), (10, 2), (16, 8), (24, 16)])
def test_the_gate_is_shut_until_a_slow_host_has_queued_all_calls(calls, delay_ms):
    assert gate_delay_ms(calls) == pytest.approx(delay_ms)
    assert gate_delay_ms(calls) >= 0.2 * min(calls, 10) + 0.45 * max(0, calls - 10)


@pytest.mark.parametrize(
    ("said", "patience", "waited_for"),
    [
        (["called"], Patience(60, 0.05), "what its calls had queued took more than 0 s"),
        ([], Patience(0.05, 60), "its calls took more than 0 s"),
        ([], Patience(0.05), "its calls took more than 0 s"),
    ],
)
def test_kernels_have_less_time_than_a_first_call(said, patience, waited_for):
    ours, theirs = socket.socketpair()
    link = WorkerLink(ours, "host", (4096, 4 * SIZE))
    for op in said:
        wire.send(theirs, {"op": op})
    with pytest.raises(WorkerGone) as gone:
        link._done(patience)
    assert (gone.value.report.status, gone.value.report.message) == (Status.TIMED_OUT, waited_for)
    theirs.close()
    link.close()
