"""Tables of configs/published/*.yaml → published figures, each on a case of a suite here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

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
    """

    name: Name
    title: Line
    source: str = Field(pattern=r"^https://\S+$", max_length=400)
    gpu: Line
    version: Line
    flops: Line
    differs: tuple[Line, ...] = ()
    over: tuple[Name, ...] = ()
    tolerance_pct: Positive = 3.0
    series: tuple[Series, ...] = Field(min_length=1)


class Tables(Frozen):
    """A file of them."""

    tables: tuple[Published, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure, and the case here that has its shape."""

    entry: str
    problem: str
    suite: str
    case: Case
    tflops: float


def known_tables(configs: Path) -> dict[str, tuple[Path, Published]]:
    """Name → file and table, of `configs`/published/ and of what comes along."""
    files = (f for layer in layers(configs)[::-1] for f in sorted((layer / FOLDER).glob("*.yaml")))
    return {
        table.name: (file, table)
        for file in files
        for table in load_model(file, Tables, SuiteError).tables
    }


def load_published(name: str, configs: Path) -> tuple[Published, tuple[Figure, ...]]:
    """The table `name` and its figures of entries here, in its order.

    Raises UsageError for a name that is none, SuiteError for a file that is wrong.
    """
    table, told = _read(name, configs)
    return table, tuple(f for series, figures in told if series.entry for f in figures)


def called(name: str, configs: Path) -> dict[str, dict[Case, float]]:
    """Kernel, as the table `name` calls it → its TFLOP/s on each shape."""
    _, told = _read(name, configs)
    return {one.called: {f.case: f.tflops for f in figures} for one, figures in told if one.called}


def _read(name: str, configs: Path) -> tuple[Published, list[tuple[Series, list[Figure]]]]:
    known = known_tables(configs)
    if name not in known:
        hint = did_you_mean(name, known) or f"tables here: {', '.join(sorted(known)) or 'none'}"
        raise UsageError(f"no published table '{name}'", hint)
    path, table = known[name]
    return table, [(series, _figures(path, table, series, configs)) for series in table.series]


def _figures(path: Path, table: Published, series: Series, configs: Path) -> list[Figure]:
    suite = load_suite(series.suite, configs)
    return [
        Figure(series.entry, suite.problem, suite.name, _case(path, table, suite, case), tflops)
        for case, tflops in series.tflops.items()
    ]


def _case(path: Path, table: Published, suite: Suite, name: str) -> Case:
    found = next((case for case in suite.cases if case.name == name), None)
    if found is None:
        near = did_you_mean(name, [case.name for case in suite.cases])
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        its = dropwhile(lambda line: f"name: {table.name}" not in line[1], lines)
        at = next((n for n, line in its if f"{name}:" in line), 1)
        hint = near or f"its cases: configs/{suite.name}.yaml"
        raise SuiteError(f"{path}:{at}: suite '{suite.name}' has no case '{name}'", hint)
    return found
