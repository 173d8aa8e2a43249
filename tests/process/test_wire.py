"""The wall: what a hostile peer sends must end the conversation, nothing else."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import WireError
from harness.process import wire

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
