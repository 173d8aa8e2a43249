"""What a command writes can fail, and nothing else fails with it: a measurement goes on unheard.

A reader that left (`| head`, a closed pager, a dead `tee`), a full disk, a closed descriptor: the
first write that fails turns the stream towards nothing, and the exit code tells at the end. Records
are written elsewhere, to files of their own (harness/board/record.py).
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TextIO

from harness.errors import Exit
from harness.process.text import unordered

CLOSED = "closed"


class Output(io.TextIOBase):
    """A text stream whose writes never raise; None stands for one that was closed from the start.

    `fault` is why it stopped, empty while it works; `reader_left` where that is no fault at all.
    `only_a_view`: what it lost is in the records too, so the exit code does not speak of it.
    """

    encoding, errors = "utf-8", "replace"

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream or io.StringIO()  # to which nothing is written
        self.fault = CLOSED if stream is None else ""
        self.reader_left = False
        self.only_a_view = False
        self.encoding = getattr(stream, "encoding", None) or self.encoding  # rich asks for both
        self.errors = getattr(stream, "errors", None) or self.errors

    def writable(self) -> bool:
        """Whatever becomes of it."""
        return True

    def isatty(self) -> bool:
        """False once nobody is there."""
        with contextlib.suppress(OSError, ValueError):
            return not self.fault and self.stream.isatty()
        return False

    def fileno(self) -> int:
        """Of the stream below; OSError where it has none."""
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """All of `text`, but for orders to a CI runner, or nothing more from here on."""
        self._try(partial(self.stream.write, unordered(text)))
        return len(text)

    def flush(self) -> None:
        """As far as anybody takes it."""
        self._try(self.stream.flush)

    def code_beside(self, code: int) -> int:
        """`code`, the command's own; in place of a 0 what a shell says of a lost reader, or 5."""
        self.flush()
        if code != Exit.OK or not self.fault:
            return code
        if self.reader_left:
            return Exit.NOBODY_READS
        return Exit.OK if self.only_a_view else Exit.STORAGE

    def _try(self, act: Callable[[], object]) -> None:
        """Until one fails. What waits in buffers then goes nowhere, too: Python tries it again."""
        if self.fault:
            return
        try:
            act()
        except (OSError, ValueError) as cause:
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
