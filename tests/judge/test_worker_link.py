"""The judge's side of one worker, and the time that the judge takes itself."""

from __future__ import annotations

import socket

import pytest

torch = pytest.importorskip("torch")

from harness.cli.selftest.stand_ins import standing_in  # noqa: E402
from harness.judge import burst  # noqa: E402
from harness.judge.burst import Patience, WorkerGone, WorkerLink  # noqa: E402
from harness.judge.inputs import Inputs  # noqa: E402
from harness.judge.sampled import Sampled  # noqa: E402
from harness.judge.stream import OwnTime  # noqa: E402
from harness.judge.withheld import Withheld  # noqa: E402
from harness.problems.base import TensorSpec  # noqa: E402
from harness.process import wire  # noqa: E402
from harness.process.messages import WorkerReply  # noqa: E402
from harness.schema import Status, gate_delay_ms  # noqa: E402

SPEC = TensorSpec("o", (1, 2, 64, 8), "fp16")
SPEC_STRIDES = (1024, 512, 8, 1)
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


def test_a_rehearsal_is_done_a_few_times_in_the_workers_own_memory(monkeypatch):
    """It leaves the judge's inputs right, and their copies where the burst's will lie."""
    ours, theirs = socket.socketpair()
    q = torch.randn((1, 2, 64, 8), dtype=torch.float16)
    true, spec = q.clone(), TensorSpec("q", (1, 2, 64, 8), "fp16", withheld=True)
    asked = Inputs((spec,), (), tensors=[(q,)], references=[], kwargs={}, contract_limit=1.0)
    found, seen = WorkerLink(ours, "host", (q.nbytes, SIZE)), []
    evicted = []
    monkeypatch.setattr(burst, "evict_l2", lambda: evicted.append(len(seen)))

    def reveal_ms(withheld):
        withheld.reveal()
        place = found.inputs.room[: q.nbytes].view(torch.float16).view(q.shape)
        seen.append((torch.equal(place, true), torch.equal(q, true)))
        return 0.25

    monkeypatch.setattr(Withheld, "reveal_ms", reveal_ms)
    found.rehearse(asked)
    assert not seen, "without the GPU's clock there is nothing to rehearse"
    found.gate = object()
    for _ in range(5):
        found.rehearse(asked)
        assert torch.equal(q, true)
        assert not found.inputs.room.any(), "the worker may look before its burst begins"
    assert seen == [(True, False)] * 3
    assert evicted == [0, 1, 2], "a single call's inputs are read from memory, as in a long burst"
    assert found.own_time.beyond(((spec,), 1), 1.0, 0.3, found) == pytest.approx(0.7)
    found.close()
    theirs.close()


def test_the_engine_hears_that_a_burst_is_over_before_it_is_verified(monkeypatch):
    ours, theirs = socket.socketpair()
    seen = []
    found = WorkerLink(ours, "host", (4096, 4 * SIZE), over=lambda: seen.append("over"))
    reply = WorkerReply(op="go", calls_ms=(1.0, 1.0), strides=[[list(SPEC_STRIDES)]] * 2)
    monkeypatch.setattr(found, "ask", lambda message, _: seen.append(message["op"]) or reply)
    monkeypatch.setattr(burst, "same_bits", lambda *_: seen.append("inputs") or True)
    assert found.burst(ASKED, Patience(1.0)).status is Status.PASSED
    assert seen == ["prepare", "go", "over", "inputs"]
    found.close()
    theirs.close()


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
    with standing_in(frozenset({"output_sampled"}), "judge"):
        assert not any(tensor.any() for tensor in link._taken(ASKED, told))


@pytest.mark.parametrize(("calls", "delay_ms"), [(1, 4), (10, 4), (16, 10), (24, 18)])
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
