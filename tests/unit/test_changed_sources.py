"""A submission that is saved while a run reads it: no row may stand under a hash of other bytes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from harness.defences import NOTHING_OFF
from harness.problems import get_problem
from harness.registry import load_entrant
from harness.schema import Kind, Status
from harness.suite import load_suite
from harness.turns import take_turn

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


class Known:
    """What became of one case."""

    status: Status | None = None

    def fail(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason


def test_files_saved_after_the_hash_leave_no_verdict_and_disturb_nobody(tmp_path: Path) -> None:
    seats = {}
    for name in ("steady", "edited"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
        problem = get_problem("attention_forward")
        entrant = load_entrant(tmp_path / f"{name}.py", Kind.SUBMISSION, problem)
        child = MagicMock(group=None, **{"ending.return_value": "", "log_tail.return_value": ""})
        seats[name] = MagicMock(entrant=entrant, child=child, attached=False, ended_for=None)
    (tmp_path / "edited.py").write_text(SOURCE + "# saved a moment later\n")
    records: dict[tuple[str, str], Known] = defaultdict(Known)
    suite = load_suite("quick", ROOT / "configs")
    state: Any = SimpleNamespace(
        suite=suite,
        seats=seats,
        record=lambda name, case: records[name, case.name],
        limits=suite.limits,
        sizes=(0, 0),
        evidence={},
        facts=SimpleNamespace(off=NOTHING_OFF),
        judge=MagicMock(**{"attach.return_value": None}),
        clean_up=lambda: None,
    )
    for name in seats:
        take_turn(state, name, suite.cases[1], timeout_s=1)
    assert seats["edited"].end.called
    assert not state.judge.burst.call_args_list[1:], "the edited one is never asked"
    found = {
        name: {known.status for (n, _), known in records.items() if n == name} for name in seats
    }
    assert found == {"steady": set(), "edited": {Status.INTERRUPTED}}
    assert len(records) == len(suite.cases)
    assert "run it again" in records["edited", suite.cases[0].name].reason
