"""Inputs withheld until the clock runs, and the streams that wait for them."""

from __future__ import annotations

import socket
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from harness.judge import stream  # noqa: E402
from harness.judge.burst import Patience, WorkerGone, WorkerLink  # noqa: E402
from harness.judge.inputs import Inputs  # noqa: E402
from harness.judge.stream import StreamLatch  # noqa: E402
from harness.judge.withheld import Withheld  # noqa: E402
from harness.problems import PROBLEMS  # noqa: E402
from harness.problems.base import TensorSpec  # noqa: E402
from harness.process.messages import WorkerReply  # noqa: E402
from harness.schema import Case, Status  # noqa: E402

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


Q = TensorSpec("q", (1, 2, 16, 8), "fp16", withheld=True)
O = TensorSpec("o", (1, 2, 16, 8), "fp16")  # noqa: E741
INPUTS, OUTPUTS, LATCH = 100, 200, 300  # addresses of words


class Queue:
    """What was queued, in order; stands for the driver, for events and for the host's store."""

    def __init__(self):
        self.told = []

    def wait_value(self, address, value):
        self.told.append(f"wait {address} {value}")

    def write_value(self, address, value):
        self.told.append(f"write {address} {value}")

    def event(self, name):
        queue = self

        class Event:
            def record(self):
                queue.told.append(name)

            def synchronize(self):
                queue.told.append(f"host: {name} is over")

            def elapsed_time(self, other):
                return 40.0  # ms

        return Event()


@pytest.fixture
def queue(monkeypatch):
    made = Queue()
    monkeypatch.setattr(stream.torch.cuda, "synchronize", lambda: made.told.append("host: idle"))
    return made


@pytest.fixture
def gate(queue):
    """A gate on no GPU."""
    made = StreamLatch.__new__(StreamLatch)

    class Latch:
        def data_ptr(self):
            return LATCH

        def __setitem__(self, _, value):
            queue.told.append(f"host: {LATCH} is {value}")

    made._latch, made._driver, made._rescue, made.turn = Latch(), queue, None, 0
    made._inputs_flag, made._outputs_flag = INPUTS, OUTPUTS
    for name in ("reached", "opened", "start", "ready", "done", "end"):
        setattr(made, f"_{name}", queue.event(name))
    return made


def test_what_is_queued_between_the_two_waits(gate, queue):
    gate.close()
    gate.lend(lambda: queue.told.append("reveal"), lambda: queue.told.append("sample"))
    gate.wait_reached()
    gate.open()
    gate.release()
    assert queue.told == [
        *(f"write {OUTPUTS} 0", "reached", f"wait {LATCH} 1", "opened"),
        *("start", "reveal", "ready", f"write {INPUTS} 1"),
        *(f"wait {OUTPUTS} 1", "done", "sample", "end"),
        *("host: reached is over", f"host: {LATCH} is 1"),
        *(f"host: {LATCH} is 1", f"write {OUTPUTS} 1", "host: idle"),
    ]


def test_what_a_worker_does_before_it_answers_is_behind_its_calls(gate, queue, monkeypatch):
    now = [10.0, 10.25]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0] if len(now) == 1 else now.pop(0))
    gate.close()
    gate.open()  # at 10 s; 40 ms later all was read
    gate.release()
    assert gate.behind_ms == pytest.approx(210.0)


class Steps(TorchDispatchMode):
    """Every operation of torch, in the order of the queue."""

    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.queue.told.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def link(gate):
    ours, theirs = socket.socketpair()
    theirs.close()
    made = WorkerLink(ours, "host", (1 << 14, 4 << 20))
    made.gate = gate
    gate.elapsed_ms = lambda: (1.0, 0.1)
    yield made
    made.close()


def gated(link, queue, answer):
    """One burst of two calls up to the outputs, every step told."""
    hidden = [torch.randn(Q.shape).half() for _ in range(2)]
    asked = Inputs((Q,), (O,), [(one,) for one in hidden], [], {}, 1.0)
    shared = link.inputs.carve([(Q.shape, Q.dtype)] * 2)
    link.outputs.table(2).copy_(torch.tensor([0, 1024]))
    link.send = lambda message, *_: queue.told.append(f"say {message['op']}")
    link.answer = lambda op, _: answer()
    with Steps(queue):
        withheld = Withheld(list(zip(hidden, shared, strict=True)), link.inputs.room)
        preheat = lambda: queue.told.append("preheat")  # noqa: E731
        return link._gated(link.gate, asked, (hidden, shared), withheld, Patience(1.0), preheat)


def test_behind_the_shut_latch_nothing_allocates_or_runs_for_the_first_time(link, queue):
    reply, t2_ms, outs = gated(link, queue, lambda: WorkerReply(op="done"))
    assert reply.op == "done"
    assert t2_ms == pytest.approx(0.9)
    assert len(outs) == 2
    shut = queue.told.index(f"wait {LATCH} 1")
    opened = queue.told.index(f"host: {LATCH} is 1")
    before, behind = queue.told[:shut], queue.told[shut:opened]
    assert queue.told.index("preheat") < shut
    queued = [step for step in behind if step.startswith("aten.")]
    assert Counter(queued) == Counter(
        ["aten.copy_.default"] * 3  # two inputs, and the table of offsets
        + ["aten.scatter_.src", "aten.index_select.out", "aten.take.out", "aten.clamp_.default"]
        + ["aten.bitwise_right_shift_.Tensor_Scalar", "aten.add_.Tensor"]
    )
    assert set(queued) <= set(before) | {"aten.copy_.default"}
    assert behind.index("aten.scatter_.src") < behind.index("ready")
    assert behind.index("done") < behind.index("aten.take.out") < behind.index("say go")


def test_whatever_the_worker_does_the_stream_is_idle_afterwards(link, queue):
    def fails():
        raise WorkerGone(Status.TIMED_OUT, "no answer")

    with pytest.raises(WorkerGone):
        gated(link, queue, fails)
    assert queue.told[-1] == "host: idle"
