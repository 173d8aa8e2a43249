"""Tables of configs/published/*.yaml → published figures, each on a case of a suite here."""

from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from harness.catalog.source_files import fault
from harness.catalog.suites import load_suite
from harness.catalog.yaml_model import load_model
from harness.errors import SuiteError, UsageError, did_you_mean
from harness.process.project import layers
from harness.schema import Case, Suite
from harness.schema.common import Frozen, Name, Positive

FOLDER = "published"
Line = Annotated[str, Field(min_length=1, max_length=400)]


class Series(Frozen):
    """What was published of one kernel on the cases of one suite, in TFLOP/s.

    entry: who computes it here; empty: nobody. called: what the table calls it, and so the board.
    """

    entry: Name | Literal[""] = ""
    called: str = Field(default="", max_length=80)
    suite: Name
    tflops: dict[Name, Positive] = Field(min_length=1)


class Published(Frozen):
    """One table: where it stands, on what it was measured, and its figures.

    over: entries that others are divided by. Of another GPU only ratios can be compared.
    differs: what else than GPU and version was not as it is here.
    shown: what a board calls the source of the kernels that are `called` something.
    """

    name: Name
    title: Line
    source: str = Field(pattern=r"^https://\S+$", max_length=400)
    gpu: Line
    version: Line
    flops: Line
    differs: tuple[Line, ...] = ()
    over: tuple[Name, ...] = ()
    shown: str = Field(default="", max_length=400)
    tolerance_pct: Positive = 3.0
    series: tuple[Series, ...] = Field(min_length=1)


class Beside(Frozen):
    """What `source` tells of one kernel on shapes of a suite, in TFLOP/s: shown, not compared."""

    name: Line
    suite: Name
    source: Line
    tflops: dict[Name, Positive] = Field(min_length=1)


class Claim(Frozen):
    """A figure on a shape that no suite asks, or that is not wholly told."""

    what: Line
    problem: Name
    figure: Line
    setting: Line
    source: Line


class Tables(Frozen):
    """A file of them. beside, claims: what is shown at the foot of a board alone."""

    tables: tuple[Published, ...]
    beside: tuple[Beside, ...] = ()
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure, and the case here that has its shape."""

    entry: str
    problem: str
    suite: str
    case: Case
    tflops: float


@dataclass(frozen=True, slots=True)
class Reported:
    """TFLOP/s of one kernel as told by `source`, on shapes of one problem."""

    name: str
    source: str
    figures: tuple[Figure, ...]

    def on(self, problem: str, case: Case) -> float | None:
        """TFLOP/s on this shape of this problem, whatever its config's name; None if not told."""
        asked = (problem, case.question)
        return next((f.tflops for f in self.figures if (f.problem, f.case.question) == asked), None)


def _files(configs: Path) -> dict[Path, Tables]:
    """Those of `configs`/published/ and of what comes along."""
    files = (f for layer in layers(configs)[::-1] for f in sorted((layer / FOLDER).glob("*.yaml")))
    return {file: load_model(file, Tables, SuiteError) for file in files}


def known_tables(configs: Path) -> dict[str, tuple[Path, Published]]:
    """Name → file and table."""
    files = _files(configs)
    return {table.name: (file, table) for file, told in files.items() for table in told.tables}


def load_published(name: str, configs: Path) -> tuple[Published, tuple[Figure, ...]]:
    """The table `name` and its figures of entries here, in its order.

    Raises UsageError for a name that is none, SuiteError for a file that is wrong.
    """
    known = known_tables(configs)
    if name not in known:
        hint = did_you_mean(name, known) or f"tables here: {', '.join(sorted(known)) or 'none'}"
        raise UsageError(f"no published table '{name}'", hint)
    path, table = known[name]
    each = [f for series in table.series for f in _figures(path, table.name, series, configs)]
    return table, tuple(figure for figure in each if figure.entry)


def reported(configs: Path) -> tuple[list[Reported], list[Claim]]:
    """What boards show of all files, in their order: the tables' kernels, then the others."""
    found: list[Reported] = []
    files = _files(configs)
    for path, told in files.items():
        for table in (table for table in told.tables if table.shown):
            for one in (series for series in table.series if series.called):
                figures = _figures(path, table.name, one, configs)
                found.append(Reported(one.called, table.shown, figures))
        found += [
            Reported(one.name, one.source, _figures(path, one.name, one, configs))
            for one in told.beside
        ]
    return found, [claim for told in files.values() for claim in told.claims]


def _figures(path: Path, named: str, series: Series | Beside, configs: Path) -> tuple[Figure, ...]:
    """Of the figures behind `name: NAMED` of the file `path`."""
    suite, entry = load_suite(series.suite, configs), getattr(series, "entry", "")
    each = ((_case(path, named, suite, name), told) for name, told in series.tflops.items())
    return tuple(Figure(entry, suite.problem, suite.name, case, tflops) for case, tflops in each)


def _case(path: Path, named: str, suite: Suite, name: str) -> Case:
    if (found := next((case for case in suite.cases if case.name == name), None)) is None:
        near = did_you_mean(name, [case.name for case in suite.cases])
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        its = dropwhile(lambda line: f"name: {named}" not in line[1], lines)
        at = next((n for n, line in its if f"{name}:" in line), 1)
        hint = near or f"its cases: configs/{suite.name}.yaml"
        raise fault(path, f"suite '{suite.name}' has no case '{name}'", hint, at, SuiteError)
    return found
