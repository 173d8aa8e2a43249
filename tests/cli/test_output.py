"""Streams that fail: nothing is raised, nothing is tried again, and the exit code says it at the end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from harness.cli.output import Output, unbreakable
from harness.errors import EXIT_NOBODY_READS, EXIT_STORAGE, EXIT_SUBMISSION_FAILED
from tests.cli.test_terminal import Screen, tell


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A pipe whose reader has left."""
    reads, writes = os.pipe()
    os.close(reads)
    stream = os.fdopen(writes, "w", encoding="utf-8")
    yield stream
    stream.close()  # what waited in its buffers went nowhere: this raises nothing


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        yield stream


def test_what_works_passes_through() -> None:
    below = io.StringIO()
    out = Output(below)
    print("hello", file=out)
    assert (below.getvalue(), out.fault, out.code_beside(0)) == ("hello\n", "", 0)


def test_a_reader_who_left_is_141_beside_nothing_worse(closed_pipe: TextIO) -> None:
    out = Output(closed_pipe)
    for _ in range(3):
        print("hello", file=out, flush=True)
    assert out.reader_left
    assert out.code_beside(0) == EXIT_NOBODY_READS
    assert out.code_beside(EXIT_SUBMISSION_FAILED) == EXIT_SUBMISSION_FAILED


def test_a_full_disk_is_5_unless_the_records_say_the_same(full_disk: TextIO) -> None:
    out = Output(full_disk)
    print("hello", file=out)  # in a buffer still: code_beside flushes
    assert out.code_beside(0) == EXIT_STORAGE
    assert "No space" in out.fault
    assert out.code_beside(EXIT_SUBMISSION_FAILED) == EXIT_SUBMISSION_FAILED
    out.only_a_view = True
    assert out.code_beside(0) == 0


def test_a_stream_closed_from_the_start_takes_everything() -> None:
    out = Output(None)
    print("hello", file=out, flush=True)
    assert (out.fault, out.isatty(), out.code_beside(0)) == ("closed", False, EXIT_STORAGE)


@pytest.mark.parametrize("below", ["closed_pipe", "full_disk", None])
def test_a_view_tells_its_story_to_nobody(
    below: str | None, request: pytest.FixtureRequest
) -> None:
    stream = request.getfixturevalue(below) if below else None
    tell(Output(stream))


def test_a_moving_view_whose_terminal_goes_away_goes_on() -> None:
    class Gone(Screen):
        """The window is closed after the first line."""

        def write(self, text: str) -> int:
            if "\n" in self.getvalue():
                raise OSError(5, "Input/output error")
            return super().write(text)

    tell(Output(Gone()))


def test_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with unbreakable() as out:
        assert sys.stdout is out
        with unbreakable() as inner:
            assert inner is out  # a run of --watch in a watch
        print("hello")
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "hello\n"
