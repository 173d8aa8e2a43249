"""The run's own loop, sources that change under it, and what is compiled ahead."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.catalog.entrants import load_entrant, stage
from harness.catalog.suites import load_suite
from harness.engine import correctness
from harness.engine.burst import Question, run_burst
from harness.engine.guards.budget import Budget
from harness.engine.guards.quiet import Quiet
from harness.engine.run import Run
from harness.engine.run_state import wanted_probes
from harness.errors import WireError
from harness.measure.verdict import NOBODY_LEFT, Evidence
from harness.problems import get_problem
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.schema import Case, Claims, Kind, Machine, Manifest, Status
from tests.engine.factory import worker

ROOT = Path(__file__).resolve().parents[2]


def test_a_case_that_is_timed_keeps_its_row_when_the_run_breaks_later() -> None:
    suite = load_suite("quick", ROOT / "configs")
    run = object.__new__(Run)
    run.suite, run.done, run.workers = suite, set(), {"mine": SimpleNamespace()}  # type: ignore[dict-item]
    run.judge = SimpleNamespace(commitment="new")  # type: ignore[assignment]
    first, second, *_ = (case.name for case in suite.cases)
    run.done.add(first)
    run.revealed = {first: ("c1", "s1"), second: ("c2", "s2")}
    records: dict[str, MagicMock] = defaultdict(MagicMock)
    run.record = lambda name, case: records[case.name]  # type: ignore[method-assign]
    finished: dict[str, tuple[str, str]] = {}
    run._finish = lambda case, *told: finished.update({case.name: told})  # type: ignore[method-assign]
    run._abandon(Status.HARNESS_ERROR, "the judge is gone")
    assert first not in finished
    assert finished.pop(second) == ("c2", "s2")
    assert not records[second].fail.called
    assert finished
    for name, told in finished.items():
        assert told == ("new", "")
        records[name].fail.assert_called_once_with(Status.HARNESS_ERROR, "the judge is gone")


def test_a_hidden_shape_whose_secret_is_not_told_has_no_time() -> None:
    """Nobody could draw it again."""
    suite = load_suite("quick", ROOT / "configs")
    hidden = suite.cases[0].model_copy(update={"name": "hidden_hdim64"})
    run = object.__new__(Run)
    run.suite = suite.model_copy(update={"cases": (hidden,)})
    run.done, run.revealed, run.workers = set(), {}, {"mine": SimpleNamespace()}  # type: ignore[dict-item]
    run.judge = SimpleNamespace(commitment="new")  # type: ignore[assignment]
    known = MagicMock(samples=["five of five blocks"])
    run.record = lambda *_: known  # type: ignore[method-assign]
    run._finish = lambda *_: None  # type: ignore[method-assign]
    run._abandon(Status.INTERRUPTED, "stopped by Ctrl-C")
    assert known.samples == []


def test_claims_that_refuse_every_case_make_no_room_for_others_to_fill() -> None:
    suite, problem = load_suite("quick", ROOT / "configs"), get_problem("attention_forward")
    odd = SimpleNamespace(manifest=SimpleNamespace(claims=Claims(seqlen_multiple=1 << 24)))
    wide = SimpleNamespace(manifest=SimpleNamespace(claims=Claims(seqlen_multiple=64)))
    plain = wanted_probes(suite, problem, [SimpleNamespace(entrant=wide)])  # type: ignore[list-item]
    both = [SimpleNamespace(entrant=each) for each in (wide, odd)]
    assert wanted_probes(suite, problem, both) == plain  # type: ignore[arg-type]
    assert len(plain) > len(suite.cases)


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (KeyboardInterrupt(), Status.INTERRUPTED, "stopped by Ctrl-C"),
        (WireError("the judge is gone"), Status.HARNESS_ERROR, "the judge is gone"),
        (OverflowError("math range error"), Status.HARNESS_ERROR, "OverflowError('math range"),
    ],
)
def test_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, fault: BaseException, status: Status, reason: str
) -> None:
    told: list[tuple[Status, str]] = []
    monkeypatch.setattr(Run, "_abandon", lambda _, status, reason: told.append((status, reason)))
    run = object.__new__(Run)
    with pytest.raises(type(fault)), run.nothing_lost():
        raise fault
    ((got, words),) = told
    assert got is status
    assert words.startswith(reason)


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


KERNEL = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=1) for b in (16, 32)], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def call(x):
    y = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
"""
CODE = """
import torch
from harness.worker.cross_compile import without_gpu
without_gpu("9.0/132")
import kernel
assert kernel.call(torch.zeros(64)).shape == (64,)
assert torch.cuda.get_device_capability() == (9, 0)
"""


def test_triton_compiles_every_configuration_for_the_target(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    env.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", CODE], env=env, cwd=tmp_path, check=True)
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "cache").rglob("*.ptx")]
    assert len(texts) == 2
    assert all(".target sm_90" in text for text in texts)


@pytest.mark.parametrize(
    ("sms", "dtype", "said", "status"),
    [
        (0, "bf16", Status.INCORRECT, Status.UNSUPPORTED),
        (0, "fp16", Status.INCORRECT, Status.INCORRECT),
        (132, "bf16", Status.INCORRECT, Status.INCORRECT),
        (0, "bf16", Status.CRASHED, Status.CRASHED),
    ],
)
def test_what_triton_s_interpreter_cannot_compute_is_no_fault_of_the_kernel(
    sms: int, dtype: str, said: Status, status: Status
) -> None:
    """In triton 3.7 it multiplies the bits of bf16 as integers; who needs none of it passes."""
    case = Case(name="one", batch=1, heads=1, seqlen=64, headdim=64, dtype=dtype)
    known = Evidence(SimpleNamespace(manifest=Manifest(name="mine", language="triton")), case)
    state = SimpleNamespace(facts=SimpleNamespace(machine=Machine(sms=sms)))
    correctness._fail(state, known, BurstReport(status=said, message="x"), Probe(case))
    assert known.status is status


def test_who_breaks_a_run_is_written_on_open_shapes_of_the_suite_alone() -> None:
    """A hidden row without a secret had a whole artifact refused: its verdict never arrived."""
    cases = [
        Case(name=name, batch=1, heads=1, seqlen=64, headdim=64)
        for name in ("a", "b", "hidden_hdim64")
    ]
    written: list[str] = []
    run: Any = MagicMock(suite=SimpleNamespace(cases=cases), done={"a"})
    run._finish = lambda case, *_: written.append(case.name)
    broken = Run._leaves(run, "mine", Status.BROKE_THE_RUN, "it died")
    assert written == list(broken.open_cases) == ["b"]


@pytest.mark.parametrize(
    ("status", "why", "open_"),
    [
        (Status.INTERRUPTED, NOBODY_LEFT, True),
        (Status.INTERRUPTED, "changed", False),
        (Status.CRASHED, NOBODY_LEFT, False),
    ],
)
def test_who_had_nobody_beside_it_on_a_shape_is_asked_on_hidden_ones(
    status: Status, why: str, open_: bool
) -> None:
    """A library had no time where the only entry left could do no more than one headdim."""
    run: Any = object.__new__(Run)
    case = load_suite("quick", ROOT / "configs").cases[0]
    run.record = lambda *_: known
    known = Evidence(MagicMock(), case)
    before = Evidence(MagicMock(), case)
    before.fail(status, why)
    run._left_out("sdpa", [before], [case])
    assert (known.status is None) is open_
