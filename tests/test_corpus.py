"""The corpus on this machine without its GPU: every cheater stopped, no honest control flagged."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from harness.cli.selftest import corpus
from harness.cli.selftest.corpus import (
    Expectation,
    Outcome,
    Specimen,
    load_corpus,
    run_batch,
    suite_for,
)
from harness.cli.selftest.plan import BATCH, alone_counts, batches
from harness.cli.selftest.stand_ins import STAND_INS
from harness.measure.machine import inspect_machine
from harness.problems import Problem
from harness.process.sandbox.enter import lacking, usual_level
from harness.schema import Status, Suite

CORPUS = load_corpus()
ON_CPU = [specimen for specimen in CORPUS if not specimen.expect.needs_gpu]
#: After what memory, descriptors, parents and walls of judge and workers are when they begin. Others of
#: group c find a limit, a quota or a check that stands in each run, however it began.
BEGINNINGS = re.compile(r"c(1|2|3|4|10|11|12|22|24)_")


def at_the_start(specimen: Specimen) -> bool:
    """Whether it is after how judge and workers begin, and what their memory holds then."""
    return BEGINNINGS.match(specimen.name) is not None


def runs_of(specimens: Sequence[Specimen]) -> list[list[Specimen]]:
    """Who shares a run: only with others for whom it begins in the same way."""
    first = [specimen for specimen in specimens if not at_the_start(specimen)]
    last = [specimen for specimen in specimens if at_the_start(specimen)]
    return batches(first, together=True) + batches(last, BATCH + 3, together=True)


BATCHES = runs_of(ON_CPU)


def hasty(problem: Problem, gpu: bool, expect: Expectation) -> Suite:
    """Their suite with less to wait for: a fork that has torch imports at once."""
    suite = suite_for(problem, gpu, expect)
    less = {"import_s": 5, "entrant_s": 8} if expect.slow else {}
    return suite.model_copy(update={"limits": suite.limits.model_copy(update=less)})


def disturbed(outcome: Outcome) -> bool:
    """Whether only the clocks say that one did not pass who should have."""
    result, foreseen = outcome.result, outcome.specimen.expect.status
    late = result is not None and result.status is Status.TIME_CLAIM_REJECTED
    return late and Status.PASSED in foreseen


Begun = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module")
def outcomes(forked: Begun) -> Iterator[Callable[[int], dict[str, Outcome]]]:
    """One run over one batch; all its tests look at the same run.

    As in the selftest: whose end may be a companion's doing is tried again alone, and that counts.
    So does it for who should have passed and was disturbed by what else runs on this machine.
    """
    known: dict[int, dict[str, Outcome]] = {}
    machine, level = inspect_machine().without_gpu(), usual_level()

    def of_batch(number: int) -> dict[str, Outcome]:
        batch = BATCHES[number]
        if number not in known:
            with contextlib.nullcontext() if any(map(at_the_start, batch)) else forked():
                found = {one.specimen.name: one for one in run_batch(batch, machine, level)}
                for name, first in found.items():
                    again = alone_counts(first) or disturbed(first)
                    if len(batch) > 1 and not first.ok and again:
                        found[name] = run_batch([first.specimen], machine, level)[0]
            known[number] = found
        return known[number]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "suite_for", hasty)
        yield of_batch


PLACES = [
    pytest.param(number, specimen, id=specimen.name)
    for number, batch in enumerate(BATCHES)
    for specimen in batch
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("number", "specimen"), PLACES)
def test_specimen(
    number: int, specimen: Specimen, outcomes: Callable[[int], dict[str, Outcome]]
) -> None:
    if specimen.expect.defence == "sandbox" and usual_level() == 0:
        pytest.skip("this kernel has no Landlock: level 0 lets it through, and the row says so")
    if specimen.expect.level > usual_level():
        pytest.skip(f"needs sandbox level {specimen.expect.level}: {lacking(2)}")
    outcome = outcomes(number)[specimen.name]
    assert outcome.ok, f"{outcome.verdict}: {outcome.by}"


def test_the_corpus_is_as_large_as_promised() -> None:
    assert sum(not s.honest for s in CORPUS) >= 45
    assert sum(s.honest for s in CORPUS) >= 14


@pytest.mark.parametrize("specimen", [s for s in CORPUS if not s.honest], ids=lambda s: s.name)
def test_a_cheater_says_where_it_was_seen_and_what_stops_it(specimen: Specimen) -> None:
    expect = specimen.expect
    assert expect.seen
    assert expect.exploit
    assert re.match(r"[abc]\d+_", specimen.name)


@pytest.mark.parametrize("defence", list(STAND_INS))
def test_every_defence_has_a_cheater(defence: str) -> None:
    assert any(s.expect.defence == defence for s in CORPUS)


@pytest.mark.parametrize("specimen", CORPUS, ids=lambda s: s.name)
def test_a_specimen_imports_nothing_of_the_house(specimen: Specimen) -> None:
    tree = ast.parse((specimen.folder / "submission.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith(("harness", "tests"))
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith(("harness", "tests")) for alias in node.names)
