"""Runs that end otherwise than they should: broken, stopped, unheard."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.board.store import Checked
from harness.catalog.entrants import find_entrants, load_entrant
from harness.catalog.request import Request
from harness.engine import run as engine_run
from harness.engine import session
from harness.engine.events import Observer
from harness.engine.processes.judge_client import JudgeClient, JudgeFailed
from harness.engine.run import Run
from harness.engine.run_state import FAILED_FAST
from harness.measure.machine import inspect_machine
from harness.measure.verdict import NOBODY_LEFT
from harness.problems import get_problem
from harness.process.project import HOME
from harness.schema import Case, Kind, Result, Status, Suite
from tests.board.factory import load

pytestmark = pytest.mark.usefixtures("warm")

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
    asked = Request(suite(), machine, tuple(entrants), "sdpa", cache=tmp_path / "cache")
    return asked.with_trusted()


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
    assert len({(row.run, row.date) for row in found.values()}) == 1, "it stays one run"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("shape", ["two", "hidden_hdim16"])
def test_who_kills_the_judge_behind_the_clocks_keeps_no_row(
    request_of: Request, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Kernels are named when all is timed, and hidden shapes tell no place of their own."""

    def named(run: Run, case: Case, names: list[str]) -> None:
        if case.name == shape and "breaker" in names:
            cause = JudgeFailed("it is gone", "")
            cause.worker = run.workers["breaker"].label
            raise cause

    monkeypatch.setattr(engine_run, "name_kernels", named)
    hidden = request_of.suite.model_copy(update={"hidden": 1})
    found = rows(replace(request_of, suite=hidden))
    assert {found["breaker", case].status for case in CASES} == {Status.BROKE_THE_RUN}
    assert found["honest", "hidden_hdim16"].status is Status.PASSED


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


HONEST = """
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    {first}
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
SIZES = {"one": 32, "two": 64}  # case → seqlen
FAILS = "if q.shape[2] == {}: raise KeyError(65)"


def suite_early_end(**limits: float) -> Suite:
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
    return Request(
        suite_early_end(**limits or {}), machine, tuple(entrants), "sdpa", cache=folder / "cache"
    )


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
    assert store.exit_code() == 1
    store.print_json()
    told = capsys.readouterr().out
    assert told.count('"PASSED"') == 3
    assert told.count('"CRASHED"') == 1
    asked = request(tmp_path, bad=FAILS.format(SIZES["one"]), good="")
    store = Checked(replace(asked, only_check=True, fail_fast=True))
    session.execute(replace(asked, only_check=True, fail_fast=True), store.save, Observer())
    store.print_json()
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["checks", "refused"]
    told = document["checks"]
    assert {tuple(row) for row in told} == {("entry", "config", "status", "reason")}
    assert [(row["entry"], row["config"], row["status"]) for row in told] == [
        ("bad", "one", "CRASHED"),
        ("bad", "two", "INTERRUPTED"),
        ("good", "one", "PASSED"),  # it was asked before the run ended
        ("good", "two", "INTERRUPTED"),
    ]
    good = replace(request(tmp_path, good=""), only_check=True)
    store = Checked(good)
    session.execute(good, store.save, Observer())
    assert store.exit_code() == 0


@pytest.mark.timeout(60)
def test_after_the_first_hang_the_rest_is_short(tmp_path: Path) -> None:
    limits = {"first_call_s": 3, "burst_s": 3, "again_s": 1}
    found = endings(request(tmp_path, limits=limits, hangs="import time; time.sleep(60)"))
    assert found["hangs", "one"][0] is Status.TIMED_OUT
    assert "its calls took more than 3 s" in found["hangs", "one"][1]
    assert "its calls took more than 1 s" in found["hangs", "two"][1]
    assert found["sdpa", "two"] == (Status.INTERRUPTED, NOBODY_LEFT)


ROOT = Path(__file__).resolve().parents[1]
SUITE = """
name: tiny
device: cpu
against: sdpa
baselines: [sdpa]
blocks: 2
warmup_blocks: 0
cases: [{name: one, batch: 1, heads: 1, seqlen: 32, headdim: 64, burst: 2}]
"""


def tiny(folder: Path) -> list[str]:
    """The words of a run of KERNEL, whose results lie in folder/results."""
    (folder / "mine.py").write_text(KERNEL)
    (folder / "tiny.yaml").write_text(SUITE)
    words = ["--submission", f"{folder}/mine.py", "--suite", f"{folder}/tiny.yaml"]
    return [*words, "--results", f"{folder}/results"]


def is_whole(results: Path, stderr: str) -> None:
    assert "Traceback" not in stderr
    rows, bad = load(results)
    assert sorted((row.entry, row.status.value) for row in rows) == [
        ("mine", "PASSED"),
        ("sdpa", "PASSED"),
    ]
    assert not bad
    assert (results / "cpu" / "leaderboard.md").is_file()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("| head -1", 141),
        ("2>&1 | true", 141),
        ("> /dev/full", 0),
        ("2> /dev/full > /dev/full", 0),
        (">&-", 0),
        ("--json > /dev/full", 5),
    ],
)
def test_output_that_fails_ends_no_measurement(
    where: str, code: int, tmp_path: Path, start_run: Callable[..., Any]
) -> None:
    words, error = tiny(tmp_path), tmp_path / "stderr"
    error.touch()
    with contextlib.ExitStack() as stack:
        if "|" in where:
            command = where.partition("| ")[2].split()
            reader = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            )
            assert reader.stdin
            out = Path(f"/dev/fd/{reader.stdin.fileno()}")
        else:
            out = Path(os.devnull if where == ">&-" else "/dev/full")
        err = {"2>&1": None, "2>": Path("/dev/full")}.get(where.split(maxsplit=1)[0], error)
        words += ["--json"] if "--json" in where else []
        done = start_run(words, out, err, [1] if where == ">&-" else ())
        assert done.wait(100) == code, error.read_text()
    is_whole(tmp_path / "results", error.read_text())


@pytest.mark.timeout(120)
def test_without_any_output_a_run_begins_and_ends_as_with_it(tmp_path: Path) -> None:
    command = f"{shlex.join([sys.executable, 'run.py', *tiny(tmp_path)])} >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, check=False).returncode == 0
    is_whole(tmp_path / "results", "")
