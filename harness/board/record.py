"""Result ↔ one line of JSON under results/<machine>/; append only.

One file per run, `<date>_<suite>_<run>.jsonl`, one line per Result; where several runs stand in one
file, each line is read as well. A line is

    {"run":…, "entry":…, …, "schema_version":1, …, "samples":[…], …, "crc32":"1a2b3c4d"}

- What a board chooses by stands first, what is heavy last: 100,000 lines are looked at from their
  front alone, and only those that reach the board are read whole. A front is no verdict: who
  concludes something asks `read`, `read_chosen`, `last` or `whole`, which know lines that are none.
- `crc32` closes the line and covers every byte before `,"crc32"`. A line that was cut short, or
  changed by hand, is reported as file:line and costs nothing but itself, up to MOST_BAD a file.
- Numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity".

The checksum finds accidents. It proves nothing about who wrote the line.
"""

import contextlib
import errno
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError

from harness import PROTOCOL
from harness.catalog.suites import by_sha256, is_asked
from harness.errors import StorageError
from harness.measure.gpu_specs import unlike
from harness.problems import PROBLEMS
from harness.process.sandbox.folders import files_below, is_own, plain
from harness.process.text import dumps, each_once, plain_text, shown
from harness.schema import MOST_LINE_BYTES, Front, Kind, Result, Slack, Status
from harness.schema.suite import MOST_CASES, MOST_HIDDEN

#: Keys told first: what `Head` holds.
FRONT = tuple(Front.model_fields)
#: Keys told last, in this order.
HEAVY = ("samples", "telemetry", "null_gaps_ms", "log_tail")
HEAVY_START = b',"samples":'
CRC_MARK = b',"crc32":"'
#: ,"crc32":"1a2b3c4d"}
CRC_BYTES = len(CRC_MARK) + 8 + 2
MOST_BAD = 100  # lines of a file until it is read no further
DAY_S = 86_400.0  # by which the clock of the machine that measured may be off
MOST_NESTED = 1 << 19  # lists and objects of a line: 80,000 of the longest row, and its texts


class LineNotWritten(StorageError):
    """The disk refused a line; `line` is its text, for the caller to print."""

    def __init__(self, message: str, hint: str, line: str) -> None:
        super().__init__(message, hint)
        self.line = line


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that does not count, and why; `number` 0: the file as a whole."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.number or ''}{': ' if self.number else ' '}{self.reason}"


class Head(Front):
    """The front of one line: enough to choose what is read whole and to draw the history."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # the rest of it is read later
    path: Path
    offset: int
    number: int
    integrity: str = "judged"
    slack: Slack | None = None

    def line(self) -> bytes:
        """All of it, as it stands in the file."""
        with open(self.path, "rb", opener=plain) as file:
            file.seek(self.offset)
            return file.readline(MOST_LINE_BYTES).strip()  # as `lines` reads it


# --------------------------------------------------------------------------- writing


def to_line(result: Result) -> str:
    """One line of JSON without its newline; the same result gives the same text everywhere."""
    fields = json.loads(result.model_dump_json())
    middle = [key for key in fields if key not in FRONT and key not in HEAVY]
    ordered = {key: fields[key] for key in (*FRONT, *middle, *HEAVY)}
    body = dumps(ordered, separators=(",", ":"), allow_nan=False)[:-1]
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'


def file_name(date: str, suite: str, run: str) -> str:
    """`2026-11-21_fa3_1f3c.jsonl`; what a file system dislikes becomes a dash."""
    parts = (re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-.") for part in (date[:10], suite, run))
    return "_".join(part or "x" for part in parts) + ".jsonl"


def prepare(results_dir: Path) -> None:
    """Make the folder and try it: a run that could keep nothing had better not begin.

    Raises StorageError (exit code 5).
    """
    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results_dir):
            pass
    except OSError as error:
        said = f"{results_dir}: no record can be written there: {error.strerror or error}"
        hint = "name another folder with --results DIR, or mend its permissions"
        raise StorageError(said, hint) from error


def append(results_dir: Path, result: Result, *more: Result) -> Path:
    """Add lines of one run, all or none, and wait until the disk has them; returns the file.

    Raises LineNotWritten (exit code 5) when the disk is full or read-only; what an unfinished
    write left behind is taken back.
    """
    folder = results_dir / result.machine.slug
    path = folder / file_name(result.date, result.suite, result.run)
    line = "\n".join(map(to_line, (result, *more)))
    try:
        if not is_own(folder, results_dir):
            raise OSError(errno.ELOOP, "its folder is a link, where no record would be read")
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, line.encode() + b"\n")
    except OSError as error:
        said = f"{path}: cannot write the record of {result.entry} on {result.config}: "
        hint = f"free space or permissions there, then append the line printed above to {path.name}"
        raise LineNotWritten(said + (error.strerror or str(error)), hint, line) from error
    return path


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data  # a line that was cut short keeps its damage to itself
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
    if size == 0:  # a new name is safe only once its folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --------------------------------------------------------------------------- reading


def misread(rows: Mapping[str, Result]) -> Iterator[tuple[str, str]]:
    """(name, why) of rows whose lines no command would read again, whatever they came as."""
    for name, row in rows.items():
        try:
            parse(to_line(row).encode())
        except ValueError as error:  # noqa: PERF203 - each by itself
            yield name, _reason(error)


def parse(raw: bytes, path: Path = Path()) -> Result:
    """One line of a file → Result; ValueError says what is wrong with it."""
    try:
        result = Result.model_validate(_checked_fields(raw))
    except ValidationError as error:
        raise ValueError(_reason(error)) from error
    if result.problem not in PROBLEMS:  # what it computes gives the figures their meaning
        raise ValueError(f"problem: {result.problem[:80]!r} is unknown here")
    _must_have_come(result)
    told = result.machine.model_copy(update={"gpu": result.gpu})  # by which boards go
    if told.has_gpu and (why := unlike(told)):  # its peak would be another's, or nobody's
        raise ValueError(why)
    is_asked(result)
    vars(result)["path"] = path
    return result


def _must_have_come(line: Front) -> None:
    """ValueError: of a later checkout, or of a later day, before which nothing would count."""
    if line.protocol > PROTOCOL:
        raise ValueError(f"protocol {line.protocol} is newer than this checkout's {PROTOCOL}")
    if line.date > time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + DAY_S)):
        raise ValueError(f"date {line.date} has not come: its machine's clock, or ours, is wrong")


def heads(results_dir: Path) -> tuple[list[Head], list[BadLine]]:
    """The fronts of a folder or file: 100,000 lines in seconds and in well under 1 GiB."""
    found, bad = list[Head](), list[BadLine]()
    asked = dict[tuple[object, ...], dict[str, int]]()  # of a board in one file, its n-th config
    seen = set[tuple[int, int]]()
    below = files_below([results_dir], ".jsonl")
    for path in [results_dir] if results_dir.is_file() else sorted(Path(one.path) for one in below):
        with contextlib.suppress(OSError):  # `lines` tells
            told = path.lstat()
            if (at := (told.st_dev, told.st_ino)) in seen:  # by another name of it, a hard link
                continue
            seen.add(at)
        for number, offset, raw in lines(path, bad):
            try:
                where = {"path": path, "number": number, "offset": offset}
                head = Head.model_validate(_checked_fields(raw, HEAVY_START) | where)
                _must_have_come(head)
                names = asked.setdefault((path, head.gpu, head.suite_sha256, head.protocol), {})
                nth = names.setdefault(head.config, len(names))
                if nth >= MOST_CASES + MOST_HIDDEN and head.suite_sha256 not in by_sha256():
                    raise ValueError("its suite is unknown and no suite asks so many shapes")
                found.append(head)
            except ValueError as error:  # noqa: PERF203 - as above
                bad.append(BadLine(path, number, _reason(error)))
    return found, bad


def read(chosen: Iterable[Head]) -> tuple[list[Result], list[BadLine]]:
    """The whole results behind some heads, in the order given."""
    results, bad = list[Result](), list[BadLine]()
    both = Head.model_fields.keys() & Result.model_fields.keys()
    for head in chosen:
        try:
            result = parse(head.line(), head.path)
            if any(getattr(head, key) != getattr(result, key) for key in both):
                raise ValueError("its front does not say what stands behind it")
            results.append(result)
        except ValueError as error:  # noqa: PERF203 - as above
            bad.append(BadLine(head.path, head.number, _reason(error)))
    return results, bad


def last(copies: list[Head]) -> Result | None:
    """The last of them that is a row; those behind it are taken out, each read once."""
    while copies and not (rows := read(copies[-1:])[0]):
        copies.pop()
    return rows[0] if copies else None


def whole(heads: Iterable[Head]) -> list[Head]:
    """Those of lines that can be read to their end; of one entry this costs little."""
    return [head for head in heads if read([head])[0]]


def read_chosen(
    heads: Iterable[Head], choose: Callable[[Iterable[Head]], list[Head]]
) -> tuple[list[Result], list[BadLine]]:
    """The results behind the heads that `choose` takes; a line that is no result counts as none."""
    left, bad = list(heads), list[BadLine]()
    while True:
        results, worse = read(choose(left))
        if not worse:
            return results, bad
        at = {(line.path, line.number) for line in worse}
        suspects = {head.entry for head in left if (head.path, head.number) in at}
        _, worse = read(head for head in left if head.entry in suspects)  # each line once
        bad += worse
        damaged = {(line.path, line.number) for line in worse}
        left = [head for head in left if (head.path, head.number) not in damaged]


def lines(path: Path, bad: list[BadLine]) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and text of each that is not blank, up to one too long, or MOST_BAD bad."""
    if os.path.islink(path) or not os.path.isfile(path):
        bad.append(BadLine(path, 0, "a folder, a device or a link, not a file"))
        return
    offset, before = 0, len(bad)
    try:
        with open(path, "rb", opener=plain) as file:
            ends = iter(partial(file.readline, MOST_LINE_BYTES + 1), b"")
            for number, raw in enumerate(ends, start=1):
                many = "too many bad lines before it" if len(bad) - before >= MOST_BAD else ""
                long = len(raw) > MOST_LINE_BYTES and f"more than {MOST_LINE_BYTES >> 20} MiB"
                if said := many or long:
                    bad.append(BadLine(path, number, f"{said}; the file is read no further"))
                    return
                if text := raw.strip():
                    yield number, offset, text
                offset += len(raw)
    except OSError as error:
        bad.append(BadLine(path, 0, f"cannot be read: {error.strerror}"))


def _checked_fields(raw: bytes, before: bytes = b"") -> dict[str, Any]:
    """The fields of a line whose checksum is right; of a line in our order those before `before`.

    A mark with its quotation marks cannot lie inside a text: there they would be escaped.
    """
    end = len(raw) - CRC_BYTES
    if len(raw) >= MOST_LINE_BYTES:  # with its newline, as `lines` counts
        raise ValueError("the line is too long")
    if end < 0 or not raw.startswith(CRC_MARK, end) or not raw.endswith(b'"}'):
        again = b'"crc32"' in raw and raw.endswith(b"}")  # in a text its marks would be escaped
        said = "was written again by another program: its bytes are not those of its crc32"
        raise ValueError(f"the line {said if again else 'is cut short: no crc32 at its end'}")
    body, checksum = raw[:end], raw[end + len(CRC_MARK) : -2]
    if b"%08x" % zlib.crc32(body) != checksum:
        raise ValueError("the line was changed: its crc32 does not match")
    if body.count(b"[") + body.count(b"{") > MOST_NESTED:
        raise ValueError("it has more lists than a row")
    cut = body.find(before) if before and body.startswith(b'{"run":') else -1
    front = body[:cut] if cut > 0 else body
    try:
        try:
            fields: dict[str, Any] = json.loads(front + b"}", object_pairs_hook=each_once)
        except json.JSONDecodeError:  # it may stand further down, where keys are free
            fields = json.loads(body + b"}", object_pairs_hook=each_once)
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    return fields  # what ends in "}" is an object, or no JSON


def _reason(error: Exception) -> str:
    """One line for terminals and CI's logs: a key may be anything."""
    if isinstance(error, ValidationError):  # whose own text holds the input, once for each fault
        first = error.errors(include_input=False, include_context=False)[0]
        error = ValueError(f"{'.'.join(map(str, first['loc'])) or 'line'}: {first['msg']}")
    if isinstance(error, json.JSONDecodeError):
        error = ValueError(f"not JSON: {error.msg} at column {error.colno}")
    return plain_text(shown(str(error), 300))


# --------------------------------------------------------------------------- which lines count


#: Endings that are no verdict: an older one of the same source stays.
NO_VERDICT = frozenset(
    {Status.UNAVAILABLE, Status.UNSTABLE, Status.CONTENDED}
    | {Status.INTERRUPTED, Status.HARNESS_ERROR}
)
VERDICT = 2  # the weight of one
#: A line's front, or all of it.
Line = TypeVar("Line", Head, Result)


def newest(lines: Iterable[Line]) -> list[Line]:
    """Of each (gpu, suite, protocol, entry, config) the newest verdict of the newest source."""
    source: dict[tuple[object, ...], tuple[tuple[str, str], str]] = {}
    last: dict[tuple[object, ...], Line] = {}
    for line in lines:
        who: tuple[object, ...] = (line.gpu, line.suite_sha256, line.protocol, line.entry)
        age = (line.date, line.run)
        if who not in source or age >= source[who][0]:
            source[who] = (age, line.source_sha256)
        key = (*who, line.source_sha256, line.config)
        kept = last.get(key)
        if kept is None or (weight(line), age) >= (weight(kept), (kept.date, kept.run)):
            last[key] = line
    return [line for key, line in last.items() if source[key[:4]][1] == key[4]]


def for_boards(lines: Iterable[Line]) -> list[Line]:
    """`newest`, and of a submission all rows of their runs: hidden ones stand beside their own."""
    lines = list(lines)
    chosen = {id(h): h for h in newest(lines)}
    runs = {of_run(h) for h in chosen.values() if h.kind == Kind.SUBMISSION.value}
    return list((chosen | {id(h): h for h in lines if of_run(h) in runs}).values())


def of_source(h: Head | Result) -> tuple[object, ...]:
    """What the rows of one source on one board share."""
    return (h.gpu, h.suite_sha256, h.protocol, h.entry, h.source_sha256)


def of_run(h: Head | Result) -> tuple[object, ...]:
    """What the rows of one source in one run share, all in one file."""
    return (h.path, h.run, *of_source(h))


def weight(line: Head | Result) -> int:
    """VERDICT; 1 for a time that stands beside nothing, its headline failed; 0 for no verdict."""
    if line.status in NO_VERDICT:
        return 0
    return VERDICT - (line.status is Status.PASSED and line.gpu != "cpu" and line.speedup is None)
