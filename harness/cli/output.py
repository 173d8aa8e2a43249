"""What a command writes can fail, and nothing else fails with it: a measurement goes on unheard.

A reader that left (`| head`, a closed pager, a dead `tee`), a full disk, a closed descriptor: the
first write that fails turns the stream towards nothing, and the exit code tells at the end. Records
are written elsewhere, to files of their own (harness/board/record.py).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from harness.errors import EXIT_NOBODY_READS, EXIT_OK, EXIT_STORAGE

CLOSED = "closed"


class Output(io.TextIOBase):
    """A text stream whose writes never raise; None stands for one that was closed from the start.

    `fault` is why it stopped, empty while it works; `reader_left` where that is no fault at all.
    `only_a_view`: what it lost is in the records too, so the exit code does not speak of it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
        self.fault = CLOSED if stream is None else ""
        self.reader_left = False
        self.only_a_view = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream below; rich asks for it."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """The same of its way with characters that the encoding lacks."""
        return getattr(self.stream, "errors", None) or "replace"

    def writable(self) -> bool:
        """Whatever becomes of it."""
        return True

    def isatty(self) -> bool:
        """False once nobody is there."""
        with contextlib.suppress(OSError, ValueError):
            return self.stream is not None and not self.fault and self.stream.isatty()
        return False

    def fileno(self) -> int:
        """Of the stream below; OSError where it has none."""
        if self.stream is None:
            raise io.UnsupportedOperation("closed")
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """All of `text`, or nothing more from here on."""
        if self.stream is not None and not self.fault:
            try:
                self.stream.write(text)
            except (OSError, ValueError) as cause:
                self._stop(cause)
        return len(text)

    def flush(self) -> None:
        """As far as anybody takes it."""
        if self.stream is not None and not self.fault:
            try:
                self.stream.flush()
            except (OSError, ValueError) as cause:
                self._stop(cause)

    def code_beside(self, code: int) -> int:
        """`code`, the command's own; in place of a 0 what a shell says of a lost reader, or 5."""
        self.flush()
        if code != EXIT_OK or not self.fault:
            return code
        if self.reader_left:
            return EXIT_NOBODY_READS
        return EXIT_OK if self.only_a_view else EXIT_STORAGE

    def _stop(self, cause: OSError | ValueError) -> None:
        """What waits in buffers goes nowhere, too: Python would try it again at its exit."""
        number = cause.errno if isinstance(cause, OSError) else None
        self.fault = os.strerror(number) if number else CLOSED
        self.reader_left = number == errno.EPIPE
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def keep_places() -> None:
    """Descriptors 0 to 2 that were closed (`>&-`) lead nowhere: else the next socket is one."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203 - three of them
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(number, True)


@contextlib.contextmanager
def unbreakable() -> Iterator[Output]:
    """Let stdout and stderr end nothing, whatever becomes of them; tells stdout's.

    A terminal without ✓ shows another sign instead.
    """
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    out, err = (one if isinstance(one, Output) else Output(one) for one in before)
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        sys.stdout, sys.stderr = before
