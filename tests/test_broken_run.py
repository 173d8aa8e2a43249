"""A judge that fails in one entrant's turn: that entrant leaves, the others keep their rows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.catalog.entrants import load_entrant
from harness.catalog.request import Request
from harness.engine import session
from harness.engine.events import Observer
from harness.engine.processes.judge_client import JudgeClient
from harness.measure.machine import inspect_machine
from harness.problems import get_problem
from harness.schema import Kind, Result, Status, Suite

KERNEL = """
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
CASES = ("one", "two")


def suite() -> Suite:
    case = {"batch": 1, "heads": 1, "seqlen": 32, "headdim": 16, "burst": 2}
    told = {"name": "tiny", "device": "cpu", "against": "sdpa", "blocks": 3, "warmup_blocks": 0}
    return Suite.model_validate(told | {"cases": [{"name": name, **case} for name in CASES]})


@pytest.fixture
def request_of(tmp_path: Path) -> Request:
    problem = get_problem("attention_forward")
    entrants = []
    for name in ("honest", "breaker", "second"):
        (tmp_path / f"{name}.py").write_text(KERNEL)
        entrants.append(load_entrant(tmp_path / f"{name}.py", Kind.SUBMISSION, problem))
    for each, entrant in enumerate(entrants):
        claims = entrant.manifest.claims.model_copy(update={"headdims": (16,)})
        manifest = entrant.manifest.model_copy(update={"claims": claims})
        entrants[each] = entrant.model_copy(update={"manifest": manifest})
    machine = inspect_machine().without_gpu()
    return Request(suite(), machine, tuple(entrants), "sdpa", cache=tmp_path / "cache")


def rows(request: Request) -> dict[tuple[str, str], Result]:
    found: dict[tuple[str, str], Result] = {}

    def save(result: Result) -> None:
        key = (result.entry, result.config)
        assert key not in found, "no row twice"
        found[key] = result

    session.execute(request, save, Observer())
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("turn", [2, 17], ids=["a check", "a timed burst"])
def test_who_kills_the_judge_leaves_and_costs_nobody_else_a_row(
    request_of: Request, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """The judge is killed by us, in the `turn`th turn of the breaker."""
    turns = 0
    burst = JudgeClient.burst

    def watched(self: JudgeClient, name: str, *args: Any, **kwargs: Any) -> object:
        nonlocal turns
        turns += name.startswith("breaker")
        if turns == turn and name.startswith("breaker"):
            os.kill(self.child.pid, signal.SIGKILL)
        return burst(self, name, *args, **kwargs)

    monkeypatch.setattr(JudgeClient, "burst", watched)
    found = rows(request_of)
    assert found.keys() == {(n, c) for n in ("honest", "breaker", "second") for c in CASES}
    last = found["breaker", "two"]
    assert last.status is Status.BROKE_THE_RUN
    assert last.reason.startswith("in its turn the judge failed: ")
    mine = [found[name, case].status for name in ("honest", "second") for case in CASES]
    assert mine == [Status.PASSED] * 4


def test_a_judge_without_memory_is_nobodys_verdict(
    request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = JudgeClient.attach

    def full(self: JudgeClient, name: str, *args: Any) -> object:
        if name.startswith("breaker"):
            with self._busy_with(name):
                failed = self._failed("OutOfMemoryError")
                failed.lacks = True
                raise failed
        return attach(self, name, *args)

    monkeypatch.setattr(JudgeClient, "attach", full)
    found = rows(request_of)
    assert {found["breaker", case].status for case in CASES} == {Status.HARNESS_ERROR}
    assert {found["honest", case].status for case in CASES} == {Status.PASSED}


def test_a_fault_while_one_is_built_ends_that_one(
    request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(self: session.WorkerProcess, *_: object) -> object:
        raise OverflowError(f"of {self.entrant.name}")

    needs_build = lambda worker, run: worker.entrant.name == "breaker"  # noqa: E731
    monkeypatch.setattr(session, "needs_build", needs_build)
    monkeypatch.setattr(session.WorkerProcess, "build", build)
    found = rows(request_of)
    assert {found["breaker", case].status for case in CASES} == {Status.BROKE_THE_RUN}
    assert "OverflowError" in found["breaker", "one"].reason
    assert {found["honest", case].status for case in CASES} == {Status.PASSED}
