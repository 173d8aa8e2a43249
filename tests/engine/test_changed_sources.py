"""What is hashed runs: an edit is the next run's, a changed copy ends its entry."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from harness.catalog.entrants import load_entrant, stage
from harness.catalog.suites import load_suite
from harness.engine.burst import Question, run_burst
from harness.engine.guards.budget import Budget
from harness.engine.guards.quiet import Quiet
from harness.problems import get_problem
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.schema import Kind, Status
from tests.engine.factory import worker

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


class Known:
    """What became of one case."""

    status: Status | None = None

    def fail(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason


def test_a_copy_that_was_changed_leaves_no_verdict_and_disturbs_nobody(tmp_path: Path) -> None:
    workers = {}
    for name in ("steady", "edited"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
        problem = get_problem("attention_forward")
        entrant = load_entrant(tmp_path / f"{name}.py", Kind.SUBMISSION, problem)
        staged = tmp_path / "sources" / name
        stage(entrant, staged)
        workers[name] = worker(name, source=staged, running=False)
        workers[name].entrant = entrant
    (tmp_path / "steady.py").write_text(SOURCE + "# saved a moment later by its author\n")
    (tmp_path / "sources" / "edited" / "more.py").write_text("planted")
    records: dict[tuple[str, str], Known] = defaultdict(Known)
    suite = load_suite("quick", ROOT / "configs")
    reply = BurstReport(status=Status.PASSED, calls_ms=(1.0,), t2_ms=1.0)
    state: Any = SimpleNamespace(
        suite=suite,
        workers=workers,
        record=lambda name, case: records[name, case.name],
        limits=suite.limits,
        sizes=(0, 0),
        evidence={},
        judge=MagicMock(
            **{"attach.return_value": None, "burst.return_value": reply, "inputs.return_value": 0.0}
        ),
        clean_up=lambda: None,
        roles=SimpleNamespace(null="null"),
        quiet=Quiet(),
        rng=random.Random(1),
        budget=Budget(suite.limits, "steady"),
    )
    question = Question(Probe(suite.cases[1]), "block/c/0", 1)
    for name in workers:
        run_burst(state, name, question, timeout_s=1)
    assert workers["edited"].ended
    assert not state.judge.burst.call_args_list[1:], "the edited one is never asked"
    found = {
        name: {known.status for (n, _), known in records.items() if n == name} for name in workers
    }
    assert found == {"steady": set(), "edited": {Status.INTERRUPTED}}
    assert len(records) == len(suite.cases)
    assert "run it again" in records["edited", suite.cases[0].name].reason
