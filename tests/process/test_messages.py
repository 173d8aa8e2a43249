"""Frames and the messages in them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog.entrants import MOST_MANIFEST_BYTES
from harness.engine.processes.judge_client import JudgeClient, JudgeFailed
from harness.engine.processes.worker_process import MOST_BUILD_MESSAGES, hear_builder
from harness.errors import WireError
from harness.judge.burst import WorkerGone, WorkerLink
from harness.judge.judge import message_of
from harness.process import wire
from harness.process.messages import BuilderReply, BurstReport, understood
from harness.process.text import cut, encoded_bytes, plain_text
from harness.schema import Case, Error, Limits, Status, Suite
from harness.schema.common import MOST_CALLS, MOST_NAME
from harness.schema.suite import MOST_CASES, MOST_SEQLEN, MOST_SEQUENCES
from tests.board.factory import mismatch

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def line() -> Iterator[Pair]:
    a, b = socket.socketpair()
    yield a, b
    a.close()
    b.close()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=10), json_values, max_size=5))
def test_what_is_sent_arrives(message: dict[str, object]) -> None:
    a, b = socket.socketpair()
    with a, b:
        wire.send(a, message)
        assert wire.receive(b, 1) == message


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_a_wire_error_or_an_object(body: bytes) -> None:
    a, b = socket.socketpair()
    with a, b:
        a.sendall(struct.pack("<I", len(body)) + body)
        with contextlib.suppress(WireError):
            assert isinstance(wire.receive(b, 1), dict)


def test_a_pickle_is_not_a_message(line: Pair) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, ("exit 3",))

    body = pickle.dumps(Bomb())
    line[0].sendall(struct.pack("<I", len(body)) + body)
    with pytest.raises(WireError, match="not JSON"):
        wire.receive(line[1], 1)


def test_too_long_a_claim_is_refused_before_it_is_read(line: Pair) -> None:
    line[0].sendall(struct.pack("<I", wire.MAX_BYTES + 1))
    with pytest.raises(WireError, match="at most"):
        wire.receive(line[1], 1)


def test_a_builder_can_be_told_the_largest_suite_and_the_longest_manifest() -> None:
    """It was told neither, and whoever is compiled broke the run."""
    each = MOST_SEQUENCES // MOST_CASES
    shape = {"batch": 1, "heads": 65536, "kv_heads": 32768, "headdim": 512, "causal": False}
    longest = {"seqlen": MOST_SEQLEN, "seqlens": (MOST_SEQLEN // each,) * each}
    most = {**shape, **longest, "burst": MOST_CALLS, "dtype": "bf16"}
    cases = tuple(Case(name=f"{n:0{MOST_NAME}}", **most) for n in range(MOST_CASES))
    told = json.dumps([c.model_dump(mode="json") for c in Suite(name="s", cases=cases).cases])
    beside = 16 << 10  # the rules of a sandbox, and its environment
    assert encoded_bytes(told) + MOST_MANIFEST_BYTES + beside < wire.MAX_BYTES
    assert len(told) < 128 << 10, "one word of a command line"


def test_silence_has_a_deadline(line: Pair) -> None:
    with pytest.raises(wire.PeerSilent):
        wire.receive(line[1], 0.01)


def test_half_a_message_has_a_deadline_too(line: Pair) -> None:
    line[0].sendall(struct.pack("<I", 100) + b"{")
    with pytest.raises(wire.PeerSilent):
        wire.receive(line[1], 0.01)


def test_a_byte_out_of_band_holds_nobody(line: Pair) -> None:
    """poll() tells it, and a read that waits would wait for ever: the read is in a thread, in case it does."""
    told: list[str] = []

    def read() -> None:
        with contextlib.suppress(wire.PeerClosed):
            try:
                wire.receive(line[1], 0.01)
            except WireError as cause:
                told.append(str(cause))

    line[0].send(b"x", socket.MSG_OOB)
    reader = threading.Thread(target=read)
    reader.start()
    reader.join(5)
    line[0].shutdown(socket.SHUT_RDWR)
    reader.join()
    assert told == ["sent something that is no message"]


def test_a_closed_line_is_told(line: Pair) -> None:
    line[0].close()
    with pytest.raises(wire.PeerClosed):
        wire.receive(line[1], 1)


def test_a_list_is_not_a_message(line: Pair) -> None:
    line[0].sendall(struct.pack("<I", 2) + b"[]")
    with pytest.raises(WireError, match="not an object"):
        wire.receive(line[1], 1)


def test_descriptors_travel(line: Pair) -> None:
    read, write = os.pipe()
    wire.send(line[0], {"op": "attach"}, (write,))
    message, fds = wire.receive_with_fds(line[1], 1)
    os.write(fds[0], b"x")
    assert message == {"op": "attach"}
    assert os.read(read, 1) == b"x"
    for fd in (read, write, *fds):
        os.close(fd)


HUGE = 10**399
any_text = st.text(
    st.characters() | st.characters(categories=["Cs"]) | st.sampled_from('\x00\x1b\n😀…\\"'),
    max_size=400,
)


@given(any_text.map(lambda text: text * 30), st.integers(20, 3000))
def test_a_text_is_cut_to_bytes_as_they_are_sent(text: str, most: int) -> None:
    short = cut(text, most)
    assert encoded_bytes(short) <= most
    short.encode()  # no half surrogate pair is left
    assert cut(short, most) == short


def test_a_text_that_fits_stays_and_a_long_one_keeps_both_ends() -> None:
    assert cut("f<64, true>", 300) == "f<64, true>"
    assert cut("head" + "x" * 999 + "tail", 50).startswith("head")
    assert cut("head" + "x" * 999 + "tail", 50).endswith("tail")


@pytest.mark.parametrize(
    "told",
    [
        {"cudnn": 1.0001},
        {"cudnn": -1e-9},
        {"cudnn": float("nan")},
        {"cudnn": "1"},
        {str(number): 0.5 for number in range(17)},
        [0.5],
    ],
)
def test_a_likeness_is_a_few_shares_between_nothing_and_all(told: object) -> None:
    with pytest.raises(WireError, match="likeness"):
        understood({"status": "PASSED", "likeness": told}, BurstReport)


def test_a_likeness_comes_through_and_its_names_are_cut() -> None:
    told = {"cudnn": 1.0, "x" * 999: 0.0}
    report = understood({"status": "PASSED", "likeness": told}, BurstReport)
    assert list(report.likeness.values()) == [1.0, 0.0]
    assert max(map(len, report.likeness)) <= 64


@given(any_text, any_text, any_text)
def test_a_report_fits_into_a_frame_whatever_the_words_are(a: str, b: str, c: str) -> None:
    outcome = BurstReport(
        status=Status.CRASHED,
        message=a * 40,
        calls_ms=tuple([1e-300 / 3] * 64),
        t2_ms=1 / 3,
        error=Error(finite=False, max_diff=float("nan"), rel_l2=float("inf"), worst_row=1 / 3),
        kernels=tuple([b or "x"] * 64),
        configs=tuple([c * 9] * 64),
        deterministic=True,
        likeness={f"{n}{b}": 1 / 3 for n in range(16)},
        mismatch=mismatch().model_copy(update={"picture": ("9" * 64,) * 16}),
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        wire.send(ours, message_of(outcome), timeout_s=5)
        told = understood(wire.receive(theirs, 5), BurstReport)
    assert told.message == plain_text(told.message)
    assert told.error
    assert told.error.max_diff != told.error.max_diff


def test_where_an_output_is_wrong_comes_through() -> None:
    outcome = BurstReport(status=Status.NONFINITE, message="NaN", mismatch=mismatch())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, message_of(outcome), timeout_s=5)
        told = understood(wire.receive(theirs, 5), BurstReport)
    assert told.mismatch
    assert told.mismatch.words() == mismatch().words()


@pytest.mark.parametrize(
    "change",
    [{"wrong": -1}, {"picture": ["0" * 65]}, {"picture": ["x"]}, {"picture": ["0"] * 17}, {"more": 1},
     {"heads": [0]}, {"inputs_sha256": "x"}, {"output": "o" * 41}, {"wrong_outputs": ["dq"] * 9}],
)  # fmt: skip
def test_a_place_has_bounds(change: dict[str, Any]) -> None:
    told = {"status": "INCORRECT", "mismatch": mismatch().model_dump() | change}
    with pytest.raises(WireError, match="mismatch"):
        understood(told, BurstReport)


@pytest.mark.parametrize(
    "reply",
    [
        {"op": "done", "calls_ms": [float("nan")]},
        {"op": "done", "calls_ms": [float("inf")]},
        {"op": "done", "calls_ms": [-1.0]},
        {"op": "done", "calls_ms": [HUGE]},
        {"op": "done", "calls_ms": [True]},
        {"op": "done", "calls_ms": ["1.0"]},
        {"op": "done", "calls_ms": [1.0] * 65},
        {"op": "done", "strides": [[[HUGE]]]},
        {"op": "done", "strides": [[[-1]]]},
        {"op": "done", "strides": [[[1] * 9]]},
        {"op": "done", "kernels": ["k"] * 65},
        {"op": "done", "kernels": [None]},
        {"op": "failed", "status": "GREAT"},
        {"op": "x" * 17},
        {"op": "done", "more": 1},
        {},
    ],
)
def test_a_reply_of_a_worker_that_is_none(reply: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    link = WorkerLink(ours, "host", (4096, 4096))
    wire.send(theirs, reply)
    with pytest.raises(WorkerGone) as caught:
        link.answer("go", 1)
    assert caught.value.report.status is Status.INVALID_SUBMISSION
    assert len(caught.value.report.message) < 300
    link.close()
    theirs.close()


def test_who_does_not_read_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link = WorkerLink(ours, "host", (4096, 4096))
    with contextlib.suppress(WorkerGone):
        for _ in range(1000):
            link.send({"op": "prepare", "words": "x" * 1000}, 0.05)
    with pytest.raises(WorkerGone) as caught:
        link.send({"op": "go"}, 0.05)
    assert caught.value.report.status is Status.TIMED_OUT
    link.close()
    theirs.close()


# --------------------------------------------------------------------------- the builder


def heard(*messages: dict[str, Any] | bytes, limits: Limits | None = None) -> BuilderReply:
    """What the engine takes from a builder that sends `messages` and keeps the line open."""
    ours, theirs = socket.socketpair()

    def speak() -> None:
        for message in messages:
            if isinstance(message, bytes):
                theirs.sendall(message)
            else:
                wire.send(theirs, message)

    with ours, theirs:
        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        return hear_builder(ours, limits or Limits(build_s=0.3, burst_s=0.1))


@pytest.mark.parametrize(
    "steps",
    [*({"a": wrong} for wrong in (HUGE, float("inf"), float("nan"), -1, "1")), [1],
     {str(n): 1.0 for n in range(65)}],
)  # fmt: skip
def test_numbers_of_a_builder_that_are_none(steps: object) -> None:
    with pytest.raises(WireError):
        heard({"op": "built", "steps": steps})


def test_a_builder_is_heard_to_its_end() -> None:
    steps = {"\x1b[31mred" + "d" * 999: 1.5}
    reply = heard({"op": "called"}, {"op": "ran"}, {"op": "built", "steps": steps})
    ((name, seconds),) = reply.steps.items()
    assert name.startswith("redd")
    assert (len(name) <= 100, seconds) == (True, 1.5)


def test_a_builder_may_call_all_that_a_suite_of_the_most_cases_asks() -> None:
    """Claims of all axes: 25 calls of each case of cudnn_h200, the most of ours."""
    calls = ({"op": op} for _ in range(25 * MOST_CASES) for op in ("called", "ran"))
    assert heard(*calls, {"op": "built"}, limits=Limits()).op == "built"


@pytest.mark.timeout(20)
def test_kernels_that_never_end_are_told_from_a_long_compilation() -> None:
    with pytest.raises(wire.PeerSilent, match="kernels still run 0 s after the call returned"):
        heard({"op": "called"}, limits=Limits(build_s=600, burst_s=0.1))
    with pytest.raises(wire.PeerSilent, match="not done after 0 s"):
        heard({"op": "called"}, {"op": "ran"})


def test_a_builder_that_talks_without_end_is_ended() -> None:
    frame = json.dumps({"op": "called"}).encode()
    many = (struct.pack("<I", len(frame)) + frame) * (MOST_BUILD_MESSAGES + 1)
    with pytest.raises(WireError, match="more than 16384 messages"):
        heard(many, limits=Limits(build_s=30))


def test_a_builder_that_has_always_one_more_message_ready_is_ended_in_time(line: Pair) -> None:
    """None was ever waited for: 25 s of 5 s, and it counted as built."""
    for op in ("ran", "built"):
        wire.send(line[1], {"op": op})
    with pytest.raises(wire.PeerSilent, match="not done after 0 s"):
        hear_builder(line[0], Limits(build_s=1e-9))
    assert wire.receive(line[0], 0)["op"] == "ran"


# --------------------------------------------------------------------------- the judge


@contextlib.contextmanager
def client(answer: dict[str, Any]) -> Iterator[JudgeClient]:
    """The engine's end of a line on which the judge says `answer`."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(theirs, answer)
        child: Any = SimpleNamespace(line=ours, log_tail=lambda: "", ending=lambda _: "running")
        yield JudgeClient(child, "attention_forward", "cpu", {})


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ({"status": "PASSED", "calls_ms": [HUGE]}, False),
        ({"failed": "ValueError: \x1b[31mred", "lacks": False}, False),
        ({"failed": "OutOfMemoryError: 1 GiB", "lacks": True}, True),
        ({"ok": True}, False),
    ],
)
def test_a_judge_that_fails_says_with_whom(answer: dict[str, Any], lacks: bool) -> None:
    with client(answer) as judge, pytest.raises(JudgeFailed) as caught:
        judge.burst("mine-1", 1, lambda deadline_s: None)
    assert (caught.value.worker, caught.value.lacks) == ("mine-1", lacks)
    assert "\x1b" not in caught.value.message


def test_nobody_is_blamed_for_what_the_judge_does_alone() -> None:
    told = {"secret": "00", "commitment": "short"}
    with client(told) as judge, pytest.raises(JudgeFailed) as caught:
        judge.reveal()
    assert caught.value.worker == ""
