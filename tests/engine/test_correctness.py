"""checks: which case a check belongs to, and which questions two cases share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine import correctness
from harness.engine.burst import Question
from harness.engine.events import Observer
from harness.measure.verdict import Evidence
from harness.problems import get_problem
from harness.process.messages import BurstReport
from harness.schema import Case, Entrant, Error, Kind, Manifest, Status

PROBLEM = get_problem("attention_forward")


EXACT = Error(finite=True, max_diff=0, rel_l2=0, worst_row=0)


def case_of(name: str, seqlen: int = 64, headdim: int = 64) -> Case:
    return Case(name=name, batch=1, heads=1, seqlen=seqlen, headdim=headdim)


class Checks:
    """Checks of one entrant whose answers `reply` makes; `asked` are the cases and their shapes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reply: Any, *cases: Case) -> None:
        manifest = Manifest(name="mine")
        who = {"name": "mine", "kind": Kind.SUBMISSION, "folder": Path(), "source_sha256": "0"}
        entrant = Entrant.model_validate(who | {"manifest": manifest})
        self.evidence = {case.name: Evidence(entrant, case) for case in cases}
        self.asked: list[Case] = []

        def run_burst(state: object, name: str, question: Question, timeout_s: float) -> Any:
            self.asked.append(question.probe.case)
            return reply(question.probe.case)

        monkeypatch.setattr(correctness, "run_burst", run_burst)
        state: Any = SimpleNamespace(
            suite=SimpleNamespace(cases=cases),
            problem=PROBLEM,
            workers={"mine": SimpleNamespace(entrant=entrant)},
            roles=SimpleNamespace(null=""),
            judge=SimpleNamespace(inputs=lambda *_: None),
            limits=SimpleNamespace(first_call_s=1.0),
            observer=Observer(),
            record=lambda _, case: self.evidence[case.name],
            may_run=lambda _, case: self.evidence[case.name].status is None,
            submissions=lambda: ["mine"],
            failed_fast=lambda: False,
            nobody_left=lambda _: True,
            only_check=False,
            checked=set(),
            answered={},
        )
        correctness.check_cases(state, cases)


@pytest.mark.parametrize("names", [["plain"], ["a/b"], ["a", "a/b", "b"], ["a/b/c", "a/b"]])
def test_every_check_is_told_to_its_own_case(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(case: Case) -> BurstReport:
        return BurstReport(status=Status.INCORRECT, message=f"wrong on {case.name}")

    checks = Checks(monkeypatch, wrong, *map(case_of, names))
    assert [case.name for case in checks.asked] == names
    for name in names:
        assert checks.evidence[name].reason.startswith(f"wrong on {name}")


def test_what_two_cases_invite_alike_is_asked_once_and_counts_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def right(case: Case) -> BurstReport:
        size = 0.25 if case.seqlen == 17 else 0.125
        return BurstReport(status=Status.PASSED, error=EXACT.model_copy(update={"rel_l2": size}))

    longer = case_of("longer", 1024), case_of("wide", 512, headdim=128)
    checks = Checks(monkeypatch, right, case_of("short", 512), *longer)
    asked = {n: [c.seqlen for c in checks.asked if c.name == n] for n in checks.evidence}
    assert len(asked["short"]) > 10
    assert 17 in asked["wide"], "another headdim asks something else"
    assert asked["longer"] == [1024]
    assert [k.worst and k.worst.rel_l2 for k in checks.evidence.values()] == [0.25] * 3


def test_other_bits_on_one_question_are_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_17(case: Case) -> BurstReport:
        return BurstReport(status=Status.PASSED, deterministic=case.seqlen != 17)

    checks = Checks(monkeypatch, at_17, case_of("short", 512))
    assert checks.asked[-1].seqlen != 17, "somebody asks again after it"
    assert checks.evidence["short"].deterministic is False


def test_a_probe_that_was_failed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_at_17(case: Case) -> BurstReport:
        return BurstReport(status=Status.INCORRECT if case.seqlen == 17 else Status.PASSED)

    cases = case_of("short", 512), case_of("longer", 1024)
    checks = Checks(monkeypatch, wrong_at_17, *cases)
    assert [k.status for k in checks.evidence.values()] == [Status.INCORRECT] * 2
    assert sum(case.seqlen == 17 for case in checks.asked) == 2
