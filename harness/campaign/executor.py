"""The interface of an engine: submit units, poll what they tell, cancel."""

import contextlib
import functools
import importlib
import json
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, TypeAdapter, ValidationError, create_model

from harness.campaign.unit import Unit
from harness.errors import UnavailableError
from harness.process.messages import Line, Words
from harness.process.text import each_once, shown
from harness.schema import Finite, Frozen, Machine

MODULE = "harness.campaign.child"  # the process of a unit
MOST_WORDS, ROW = 64 << 10, '{"op": "result", "line": "'  # of all lines but those that begin so
READ_BYTES = 1 << 16  # of one unit at a look: others wait
MOST_NONSENSE = 20  # lines of one attempt that nobody understands; it is heard no more then
Message = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """Something that one unit told; `op` says what.

    began   its process was started, for all that is known; SLURM has its own limit
    hello   it runs: where, machine
    stage, block, note   for the view
    result  one line of the record
    fault   what stopped it, if it could still say so
    end     all is told
    nonsense  a line that is none of these, and why
    gone    its process has ended; the engine's own word, the last of every submitted unit
    """

    label: str
    message: Message

    @property
    def op(self) -> str:
        """What kind of message."""
        return str(self.message.get("op", ""))


class Engine(Protocol):
    """Places units on GPUs. Every unit submitted is told `gone` exactly once, last."""

    places: int  # units that run at once
    window: int  # submitted units that keep it busy; more only wait

    def submit(self, unit: Unit) -> None:
        """Run `unit` when there is room; returns at once."""

    def poll(self, timeout_s: float) -> list[Told]:
        """What was told since, waiting at most `timeout_s` for the first of it."""

    def cancel(self, label: str) -> None:
        """End one unit politely: it records what it has, then it is `gone`."""

    def close(self) -> None:
        """End all that still runs."""


def gone(label: str, why: str = "", at: str = "") -> Told:
    """The last word about one unit; `why` is empty if it ended by itself and well, `at` a place."""
    return Told(label, {"op": "gone", "why": why, "at": at})


def package(name: str, extra: str) -> Any:
    """An optional package that an engine needs; UnavailableError where it is not here."""
    try:
        return importlib.import_module(name)
    except ImportError:
        said = f"UNAVAILABLE: Python package '{name}' is not installed"
        raise UnavailableError(said, f"pip install '.[{extra}]'") from None


@contextlib.contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """What is started meanwhile imports nothing from where one stood: hand-ins may lie there."""
    here = os.open(".", os.O_PATH)  # back to it, not to its name
    try:
        os.chdir(folder)
        yield
    finally:
        os.chdir(here)
        os.close(here)


#: All that the process of a unit may say, by its op; `gone` is the engine's own word.
SAID: dict[str, dict[str, Any]] = {
    "hello": {"where": Line, "machine": Machine},
    "stage": {"entry": Line, "text": Words},
    "block": {"config": Line, "done": int, "total": int, "eta_s": Finite},
    "note": {"text": Words},
    "result": {"line": str},
    "fault": {"why": Words},
    "end": {},
}


def _model(op: str, fields: dict[str, Any]) -> Any:
    told: dict[str, Any] = {k: (kind, ...) for k, kind in {"op": Literal[op], **fields}.items()}
    return create_model(op, __base__=Frozen, **told)


_ANY: Any = functools.reduce(operator.or_, map(_model, SAID, SAID.values()))
_LINES: TypeAdapter[Frozen] = TypeAdapter(Annotated[_ANY, Field(discriminator="op")])


class LineReader:
    """What one attempt tells, of bytes as they come; no more is kept than a line of it may be."""

    def __init__(self, unit: Unit) -> None:
        self.label, self._most, self._rest = unit.label, unit.line_bytes, bytearray()
        rows = len(unit.request.entrants) * len(unit.request.cases)
        self.patience, self._left = MOST_NONSENSE, self._most * (rows + 1)  # lines, bytes

    def hear(self, data: bytes) -> list[Told]:
        """The lines that `data` completes; one that is too long counts as lines, piece by piece."""
        self._rest += data
        self._left -= len(data)
        if b"\n" not in data and len(self._rest) <= self._most:
            return []
        *lines, self._rest = self._rest.split(b"\n") if b"\n" in data else (self._rest, bytearray())
        lines = lines if self._left >= 0 else [bytearray(b"more than all of its rows")]
        return [self._parse(bytes(line)) for line in lines if line and self.patience]

    def _parse(self, line: bytes) -> Told:
        """One line of a child's stdout; of what is none of `SAID` the op is `nonsense`."""
        try:
            text = line.decode().strip()
            if text.startswith(ROW) and text.endswith("}"):  # one text, and nothing behind it
                fields = {"op": "result", "line": json.loads(text[len(ROW) - 1 : -1])}
            elif len(text) > MOST_WORDS:
                raise ValueError
            else:
                fields = json.loads(text, object_pairs_hook=each_once)
            return Told(self.label, _LINES.validate_python(fields).model_dump())
        except ValidationError as error:
            first = error.errors(include_input=False, include_context=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        except (ValueError, RecursionError):
            why = f"not JSON: {line[:80]!r}"
        self.patience -= 1
        return Told(self.label, {"op": "nonsense", "why": shown(why, 300)})
