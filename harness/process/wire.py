"""Messages across the wall: a 4-byte length, then JSON. Never pickle; never more than MAX_BYTES.

Either side may be hostile, so a message is an object of numbers, strings and lists, nothing else,
and a peer that sends anything else has ended the conversation.
"""

import contextlib
import json
import select
import socket
import struct
import time
from typing import Any

from harness.errors import WireError

MAX_BYTES = 128 << 10  # a builder is told all cases of a suite, and a manifest
Message = dict[str, Any]


class PeerClosed(WireError):
    """The other side ended (crashed, exited or was killed)."""


class PeerSilent(WireError):
    """The other side did not answer before the deadline."""


def send(
    sock: socket.socket, message: Message, fds: tuple[int, ...] = (), timeout_s: float | None = None
) -> None:
    """Send one message, with open descriptors beside it if any; who does not read is silent.

    Raises PeerClosed, PeerSilent, or WireError where the message is too long.
    """
    body = json.dumps(message, allow_nan=True).encode()
    if len(body) > MAX_BYTES:
        raise WireError(f"message of {len(body)} bytes, at most {MAX_BYTES}")
    left = memoryview(struct.pack("<I", len(body)) + body)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while left:
            _await(sock, select.POLLOUT, deadline)
            with contextlib.suppress(BlockingIOError):  # another process took the room
                if fds:
                    sent = socket.send_fds(sock, [left], list(fds), socket.MSG_DONTWAIT)
                else:
                    sent = sock.send(left, socket.MSG_DONTWAIT)
                left, fds = left[sent:], ()
    except OSError as cause:
        raise PeerClosed(f"the other side is gone ({cause})") from None


def receive(sock: socket.socket, timeout_s: float | None = None) -> Message:
    """Return the next message; raise PeerClosed, PeerSilent (below 0 s at once) or WireError."""
    return receive_with_fds(sock, timeout_s, max_fds=0)[0]


def receive_with_fds(
    sock: socket.socket, timeout_s: float | None = None, max_fds: int = 1
) -> tuple[Message, list[int]]:
    """Like `receive`, with the descriptors that came along."""
    if timeout_s is not None and timeout_s < 0:  # who has always one more ready has no end else
        raise PeerSilent("the deadline is over")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    fds: list[int] = []
    (length,) = struct.unpack("<I", _exactly(sock, 4, deadline, fds, max_fds))
    if not 0 < length <= MAX_BYTES:
        raise WireError(f"a message claims {length} bytes, at most {MAX_BYTES}")
    body = _exactly(sock, length, deadline, fds, 0)
    try:
        message = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise WireError(f"not JSON: {body[:80]!r}") from None
    if not isinstance(message, dict):
        raise WireError(f"not an object: {body[:80]!r}")
    return message, fds


def _exactly(
    sock: socket.socket, size: int, deadline: float | None, fds: list[int], max_fds: int
) -> bytes:
    chunks: list[bytes] = []
    while size:
        _await(sock, select.POLLIN, deadline)
        try:  # never waits here: an out-of-band byte can be polled and not read
            if max_fds:
                chunk, new, _, _ = socket.recv_fds(sock, size, max_fds, socket.MSG_DONTWAIT)
                fds += new
            else:
                chunk = sock.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise WireError("sent something that is no message") from None
        except OSError as cause:
            raise PeerClosed(f"the other side is gone ({cause})") from None
        if not chunk:
            raise PeerClosed("the other side closed the line")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _await(sock: socket.socket, event: int, deadline: float | None) -> None:
    """Until `sock` can be read or written, or has failed; raise PeerSilent at the deadline."""
    poll = select.poll()  # select() knows no descriptor above 1023
    poll.register(sock, event)
    wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
    if not poll.poll(wait_ms):
        raise PeerSilent("no answer before the deadline")
