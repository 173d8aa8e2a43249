"""checks: which case a check belongs to, whatever its name holds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.engine import correctness
from harness.engine.burst import Question
from harness.engine.events import Observer
from harness.measure.verdict import Evidence
from harness.problems import get_problem
from harness.process.messages import BurstReport
from harness.schema import Case, Entrant, Kind, Manifest, Status

PROBLEM = get_problem("attention_forward")


def case_of(name: str) -> Case:
    return Case(name=name, batch=1, heads=1, seqlen=64, headdim=64)


@pytest.mark.parametrize("names", [["plain"], ["a/b"], ["a", "a/b", "b"], ["a/b/c", "a/b"]])
def test_every_check_is_told_to_its_own_case(
    names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    cases = tuple(case_of(name) for name in names)
    entrant = Entrant.model_validate(
        {"name": "mine", "kind": Kind.SUBMISSION, "folder": tmp_path, "source_sha256": "0"}
        | {"manifest": Manifest(name="mine")}
    )
    evidence = {case.name: Evidence(entrant, case) for case in cases}
    asked: list[str] = []

    def run_burst(state: object, name: str, question: Question, timeout_s: float) -> BurstReport:
        case = question.probe.case
        asked.append(case.name)
        return BurstReport(status=Status.INCORRECT, message=f"wrong on {case.name}")

    monkeypatch.setattr(correctness, "run_burst", run_burst)
    state = SimpleNamespace(
        suite=SimpleNamespace(cases=cases),
        problem=PROBLEM,
        workers={"mine": SimpleNamespace(entrant=entrant)},
        roles=SimpleNamespace(null=""),
        judge=SimpleNamespace(inputs=lambda *_: None),
        limits=SimpleNamespace(first_call_s=1.0),
        observer=Observer(),
        record=lambda _, case: evidence[case.name],
        may_run=lambda _, case: evidence[case.name].status is None,
        submissions=lambda: ["mine"],
        failed_fast=lambda: False,
        nobody_left=lambda _: True,
        only_check=False,
        checked=set(),
    )
    correctness.check_cases(state, cases)  # type: ignore[arg-type]
    assert asked == names
    for case in cases:
        assert evidence[case.name].reason.startswith(f"wrong on {case.name}")
