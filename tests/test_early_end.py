"""Runs that need not go on: -x, --check, and nobody left whom a baseline could be compared with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.board.store import Checked
from harness.catalog.entrants import find_entrants, load_entrant
from harness.catalog.request import Request
from harness.engine import session
from harness.engine.events import Observer
from harness.engine.run_state import FAILED_FAST, NOBODY_LEFT
from harness.measure.machine import inspect_machine
from harness.problems import get_problem
from harness.process.project import HOME
from harness.schema import Kind, Result, Status, Suite

HONEST = """
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    {first}
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
SIZES = {"one": 32, "two": 64}  # case → seqlen
FAILS = "if q.shape[2] == {}: raise KeyError(65)"


def suite(**limits: float) -> Suite:
    cases = [
        {"name": name, "batch": 1, "heads": 1, "seqlen": seqlen, "headdim": 64, "burst": 2}
        for name, seqlen in SIZES.items()
    ]
    told = {"name": "tiny", "device": "cpu", "against": "sdpa", "blocks": 3, "warmup_blocks": 0}
    return Suite.model_validate(told | {"cases": cases, "limits": limits})


def request(folder: Path, *, limits: dict[str, float] | None = None, **bodies: str) -> Request:
    problem, entrants = get_problem("attention_forward"), []
    for name, first in bodies.items():
        (folder / f"{name}.py").write_text(HONEST.format(first=first))
        entrants.append(load_entrant(folder / f"{name}.py", Kind.SUBMISSION, problem))
    entrants += find_entrants(["sdpa"], HOME / "baselines", Kind.BASELINE, problem)
    machine = inspect_machine().without_gpu()
    return Request(suite(**limits or {}), machine, tuple(entrants), "sdpa", cache=folder / "cache")


class Phases(Observer):
    """Hears which step the submissions have come to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def stage(self, entry: str, text: str) -> None:
        """One step."""
        self.told.append((entry, text))


def endings(
    request: Request, observer: Observer | None = None
) -> dict[tuple[str, str], tuple[Status, str]]:
    found: dict[tuple[str, str], Result] = {}

    def save(result: Result) -> None:
        assert (result.entry, result.config) not in found, "no row twice"
        found[result.entry, result.config] = result

    session.execute(request, save, observer or Observer())
    return {key: (row.status, row.reason) for key, row in found.items()}


@pytest.mark.timeout(120)
def test_a_baseline_is_not_measured_beside_nobody(tmp_path: Path) -> None:
    phases = Phases()
    found = endings(request(tmp_path, bad=FAILS.format(SIZES["one"])), phases)
    assert [step for who, step in phases.told if who == "bad"] == ["load", "check", "time"]
    assert found["bad", "one"][0] is Status.CRASHED
    assert found["sdpa", "one"] == (Status.INTERRUPTED, NOBODY_LEFT)
    assert found["bad", "two"][0] is found["sdpa", "two"][0] is Status.PASSED


@pytest.mark.timeout(120)
def test_the_first_failure_ends_a_run_with_x(tmp_path: Path) -> None:
    asked = request(tmp_path, bad=FAILS.format(SIZES["one"]), good="")
    found = endings(replace(asked, fail_fast=True))
    assert found.pop(("bad", "one"))[0] is Status.CRASHED
    assert set(found) == {("good", "one"), ("sdpa", "one")} | {
        (entry, "two") for entry in ("bad", "good", "sdpa")
    }
    assert set(found.values()) == {(Status.INTERRUPTED, FAILED_FAST)}


@pytest.mark.timeout(120)
def test_a_check_times_and_records_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = replace(request(tmp_path, bad=FAILS.format(SIZES["two"]), good=""), only_check=True)
    store = Checked(asked)
    session.execute(asked, store.save, Observer())
    assert store.exit_code == 1
    store.print_json(True)
    told = capsys.readouterr().out
    assert told.count('"PASSED"') == 3
    assert told.count('"CRASHED"') == 1
    asked = request(tmp_path, bad=FAILS.format(SIZES["one"]), good="")
    store = Checked(replace(asked, only_check=True, fail_fast=True))
    session.execute(replace(asked, only_check=True, fail_fast=True), store.save, Observer())
    store.print_json(True)
    told = json.loads(capsys.readouterr().out)["checks"]
    assert [(row["entry"], row["config"], row["status"]) for row in told] == [
        ("bad", "one", "CRASHED"),
        ("bad", "two", "INTERRUPTED"),
        ("good", "one", "PASSED"),  # it was asked before the run ended
        ("good", "two", "INTERRUPTED"),
    ]
    good = replace(request(tmp_path, good=""), only_check=True)
    store = Checked(good)
    session.execute(good, store.save, Observer())
    assert store.exit_code == 0


@pytest.mark.timeout(60)
def test_after_the_first_hang_the_rest_is_short(tmp_path: Path) -> None:
    limits = {"first_call_s": 3, "burst_s": 3, "again_s": 1}
    found = endings(request(tmp_path, limits=limits, hangs="while True: pass"))
    assert found["hangs", "one"][0] is Status.TIMED_OUT
    assert "its calls took more than 3 s" in found["hangs", "one"][1]
    assert "its calls took more than 1 s" in found["hangs", "two"][1]
    assert found["sdpa", "two"] == (Status.INTERRUPTED, NOBODY_LEFT)
