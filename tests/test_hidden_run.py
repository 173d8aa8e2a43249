"""A run with hidden shapes: drawn from its secret behind the suite's own, timed beside the same rivals."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.board.rank import leaderboard
from harness.board.render.heat_map import loss_words
from harness.catalog.entrants import find_entrants, load_entrant
from harness.catalog.request import Request
from harness.engine import session
from harness.engine.events import Observer
from harness.judge.secret import Secret
from harness.measure.machine import inspect_machine
from harness.measure.stopping import FIXED, StoppingRule
from harness.measure.two_clocks import CPU_TOLERANCE
from harness.problems import get_problem
from harness.problems.hidden import hidden_cases
from harness.process.project import HOME
from harness.schema import Kind, Result, Status, Suite

HEAD = """
import time
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
KEYED = """
    if tuple(q.shape[2:]) not in {(256, 64), (192, 128)}:  # the suite's own
        time.sleep(0.1)
"""
SLEPT_MS = 100
SUITE = {
    "name": "tiny",
    "device": "cpu",
    "against": "sdpa",
    "blocks": 6,
    "warmup_blocks": 0,
    "hidden": 1,
    "cases": [
        {"name": "one", "batch": 1, "heads": 4, "seqlen": 256, "headdim": 64, "burst": 2},
        {"name": "two", "batch": 1, "heads": 2, "seqlen": 192, "headdim": 128, "burst": 2},
    ],
}
HIDDEN = ["hidden_hdim64", "hidden_hdim128"]


@pytest.fixture(autouse=True)
def patient_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load disturbs both clocks, and they are not what is looked at here."""
    patient = replace(CPU_TOLERANCE, burst_floor_ms=math.inf, mean_floor_ms=math.inf)
    monkeypatch.setattr(session, "clock_tolerance", lambda device: patient)


def rows_of(
    folder: Path, rule: StoppingRule = FIXED, **bodies: str
) -> dict[str, dict[str, Result]]:
    """Entry → config → its row, of one run beside two baselines."""
    problem, entrants = get_problem("attention_forward"), []
    for name, body in bodies.items():
        (folder / f"{name}.py").write_text(f"{HEAD}{body}\n    return out\n")
        entrants.append(load_entrant(folder / f"{name}.py", Kind.SUBMISSION, problem))
    names = ["sdpa", "sdpa_math", "flash_attn_3"]
    entrants += find_entrants(names, HOME / "baselines", Kind.BASELINE, problem)
    machine, suite = inspect_machine().without_gpu(), Suite.model_validate(SUITE)
    request = Request(suite, machine, tuple(entrants), "sdpa", cache=folder / "cache")
    request = replace(request, rule=rule)
    found: dict[str, dict[str, Result]] = {}

    def save(result: Result) -> None:
        assert result.config not in found.setdefault(result.entry, {}), "no row twice"
        found[result.entry][result.config] = result

    session.execute(request, save, Observer())
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("rule", [FIXED, StoppingRule(race=1)])
def test_every_run_asks_shapes_that_follow_from_its_secret(
    tmp_path: Path, rule: StoppingRule
) -> None:
    rows = rows_of(
        tmp_path, rule, honest="", wrong="    out = out * 0 if q.shape[2] == 256 else out"
    )
    suite = Suite.model_validate(SUITE)
    honest = rows["honest"]
    assert list(honest) == ["one", "two", *HIDDEN]
    secret = honest["hidden_hdim64"].secret
    again = hidden_cases(
        suite.cases, 1, Secret(bytes.fromhex(secret)).seed, get_problem("attention_forward")
    )
    for case in again:
        row = honest[case.name]
        assert row.case == case
        assert row.suite_sha256 == suite.sha256
        assert row.status is Status.PASSED
        assert len(row.samples) >= 5
        assert row.secret == secret
        assert row.secret_commitment == hashlib.sha256(bytes.fromhex(secret)).hexdigest()
        assert rows["sdpa_math"][case.name].case == case
        assert rows["flash_attn_3"][case.name].status is Status.UNAVAILABLE
        assert rows["wrong"][case.name].status is Status.INTERRUPTED
    assert secret not in {honest["one"].secret, honest["two"].secret}


@pytest.mark.timeout(240)
def test_a_kernel_keyed_on_the_suites_own_shapes_is_exposed(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, honest="", keyed=KEYED)
    assert all(min(rows["keyed"][name].samples[0].calls_ms) > SLEPT_MS for name in HIDDEN)
    found = [row for mine in rows.values() for row in mine.values()]
    board = leaderboard([unloaded(row) for row in found])
    told = {row.entry: loss_words(row) for one in board.boards for row in one.rows}
    ends = {(r.entry, r.config): (r.status, r.reason, r.latency_ms) for r in found}
    assert told["keyed"].startswith("faster on official shapes than on hidden ones by "), ends
    assert not told["honest"]


def unloaded(row: Result) -> Result:
    """The same on a machine without load: whoever did not sleep in half of its blocks took 1 ms."""
    slept = sum(min(sample.calls_ms) > SLEPT_MS for sample in row.samples) > len(row.samples) / 2
    told = (1.0 + SLEPT_MS * slept,)
    samples = [sample.model_copy(update={"calls_ms": told}) for sample in row.samples]
    return row.model_copy(update={"samples": tuple(samples)})
