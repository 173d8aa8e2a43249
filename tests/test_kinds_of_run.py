"""Whole runs on the CPU beyond the usual: adaptive, hidden shapes, sustained, watched."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.board.rank import leaderboard
from harness.board.render.heat_map import loss_words
from harness.catalog.entrants import find_entrants, load_entrant
from harness.catalog.request import Request
from harness.engine import session
from harness.engine.events import Observer
from harness.judge.secret import Secret
from harness.measure import two_clocks
from harness.measure.machine import inspect_machine
from harness.measure.stopping import FIXED, StoppingRule
from harness.measure.two_clocks import CPU_TOLERANCE
from harness.problems import get_problem
from harness.problems.shapes import hidden_cases
from harness.process import process_tree
from harness.process.project import HOME
from harness.process.sandbox import usage
from harness.schema import Kind, Result, Status, Suite
from tests.board.factory import load
from tests.test_story import GOOD, put
from tests.test_story import SUITE as STORY

ROOT = Path(__file__).resolve().parents[1]
SUITE = """\
name: tiny
device: cpu
against: sdpa
baselines: [sdpa]
blocks: 12
warmup_blocks: 1
cases:
  - {name: one, batch: 1, heads: 1, seqlen: 32, headdim: 16, causal: true, burst: 2}
limits: {burst_s: 9, first_call_s: 20, memory_gib: 4}
"""
KERNEL = """\
import time
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(WAIT_S if q.shape[2] == 32 else 0)  # probes need not wait
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
#: Far enough apart that no other load on the machine can turn them round.
WAITS_S = {"quick": 0.01, "slow": 0.12, "slower": 0.2}
Row = dict[str, Any]
Typed = Callable[[Sequence[str]], tuple[int, str, str]]


@pytest.fixture(scope="module")
def race(
    tmp_path_factory: pytest.TempPathFactory, typed: Typed
) -> tuple[dict[str, Row], Path, str]:
    home = tmp_path_factory.mktemp("race")
    (home / "tiny.yaml").write_text(SUITE)
    for name, wait_s in WAITS_S.items():
        (home / name).mkdir()
        (home / name / "submission.py").write_text(KERNEL.replace("WAIT_S", str(wait_s)))
        (home / name / "manifest.yaml").write_text(f"name: {name}\nclaims: {{headdims: [16]}}\n")
    _, out, err = typed(
        [
            *("--suite", str(home / "tiny.yaml"), "--json"),
            *("--submission", ",".join(str(home / name) for name in WAITS_S)),
            *("--race", "1", "--until", "50%", "--time-limit", "1"),
            *("--results", str(home / "results"), "--leaderboard", str(home / "board.md")),
        ]
    )
    assert out.startswith("{"), err
    rows = {row["entry"]: row for row in json.loads(out)["results"]}
    return rows, home / "results", err


def test_the_slow_leave_early_and_keep_honest_rows(race: tuple[dict[str, Row], Path, str]) -> None:
    rows = race[0]
    assert set(rows) == {"quick", "slow", "slower", "sdpa"}
    for name in ("slow", "slower"):
        assert rows[name]["status"] == "PASSED", rows[name]["reason"]
        assert rows[name]["blocks"] < rows["quick"]["blocks"]
        assert "left the race after" in rows[name]["stopping"]["why"]
        assert re.search(r"slower than (quick|slow)\b", rows[name]["stopping"]["why"])
        assert rows[name]["latency_ms"] > rows["quick"]["latency_ms"]


def test_the_winner_has_all_blocks_and_every_one_is_paired(
    race: tuple[dict[str, Row], Path, str],
) -> None:
    rows = race[0]
    blocks = {name: {s["block"] for s in row["samples"]} for name, row in rows.items()}
    assert len(blocks["quick"]) >= 12
    assert all(mine <= blocks["sdpa"] for mine in blocks.values())
    for row in rows.values():
        assert row["stopping"]["rule"] == "race 1, until 50 %"
        assert row["stopping"]["looks"] == 11


def test_all_lines_of_the_run_open_one_commitment(race: tuple[dict[str, Row], Path, str]) -> None:
    assert len({row["secret"] for row in race[0].values()}) == 1
    results, bad = load(race[1])
    assert not bad
    assert len(leaderboard(results).boards) == 1
    assert "race: after 4 blocks" in race[2]


HEAD = """
import time
import torch.nn.functional as F

own = 0

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global own
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
KEYED = """
    own += tuple(q.shape[2:]) in {(256, 64), (192, 128)}  # the suite's
    if tuple(q.shape[2:]) not in {(256, 64), (192, 128)} and own > 30:  # checks need not wait
        time.sleep(0.1)
"""
SLEPT_MS = 100
SUITE_HIDDEN_RUN = {
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
    monkeypatch.setattr(two_clocks, "clock_tolerance", lambda on_gpu: patient)


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
    machine, suite = inspect_machine().without_gpu(), Suite.model_validate(SUITE_HIDDEN_RUN)
    request = Request(suite, machine, tuple(entrants), "sdpa", cache=folder / "cache")
    request = replace(request, rule=rule)
    found: dict[str, dict[str, Result]] = {}

    def save(result: Result) -> None:
        assert result.config not in found.setdefault(result.entry, {}), "no row twice"
        found[result.entry][result.config] = result

    session.execute(request, save, Observer())
    return found


WRONG = "    out = out * 0 if q.shape[2] == 256 else out"


@functools.cache
def fixed_run() -> dict[str, dict[str, Result]]:
    """Who is exposed stands beside who is wrong: one run is what both tests look at."""
    with tempfile.TemporaryDirectory() as folder:
        return rows_of(Path(folder), honest="", wrong=WRONG, keyed=KEYED)


@pytest.mark.usefixtures("warm")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("rule", [FIXED, StoppingRule(race=1)])
def test_every_run_asks_shapes_that_follow_from_its_secret(
    tmp_path: Path, rule: StoppingRule
) -> None:
    rows = fixed_run() if rule is FIXED else rows_of(tmp_path, rule, honest="", wrong=WRONG)
    suite = Suite.model_validate(SUITE_HIDDEN_RUN)
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


@pytest.mark.usefixtures("warm")
@pytest.mark.timeout(240)
def test_a_kernel_keyed_on_the_suites_own_shapes_is_exposed() -> None:
    rows = fixed_run()
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


SUITE_SUSTAINED_RUN = """\
name: tiny
device: cpu
against: sdpa
baselines: [sdpa]
blocks: 5
warmup_blocks: 1
cases:
  - {name: one, batch: 1, heads: 2, seqlen: 128, headdim: 16, causal: true, burst: 2}
limits: {burst_s: 9, first_call_s: 20, memory_gib: 4}
"""
HONEST = """\
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
#: Right wherever every output is compared; from then on it returns what it has.
STALE = """\
import torch.nn.functional as F

begins = {}

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    begins.setdefault(tuple(q.shape), set()).add(q.data_ptr())
    kept = getattr(custom_attention_forward, "kept", None)
    if kept is None or len(begins[tuple(q.shape)]) <= 2 or kept.shape != q.shape:
        custom_attention_forward.kept = kept = F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=sm_scale)
    return kept
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, typed: Typed) -> tuple[dict[str, Row], Path, str]:
    home = tmp_path_factory.mktemp("sustained")
    (home / "tiny.yaml").write_text(SUITE_SUSTAINED_RUN)
    for name, source in {"honest": HONEST, "stale": STALE}.items():
        (home / name).mkdir()
        (home / name / "submission.py").write_text(source)
        (home / name / "manifest.yaml").write_text(f"name: {name}\nclaims: {{headdims: [16]}}\n")
    _, out, err = typed(
        [
            *("--suite", str(home / "tiny.yaml"), "--json"),
            *("--submission", f"{home / 'honest'},{home / 'stale'}", "--sustained", "0.2"),
            *("--results", str(home / "results"), "--leaderboard", str(home / "board.md")),
        ]
    )
    assert out.startswith("{"), err
    rows = {row["entry"]: row for row in json.loads(out)["results"]}
    return rows, home, err


def test_who_is_honest_has_a_lasting_time_and_no_energy(
    run: tuple[dict[str, Row], Path, str],
) -> None:
    for name in ("honest", "sdpa"):
        told = run[0][name]["sustained"]
        assert told["status"] == "PASSED", told
        assert told["calls"] >= 2
        assert told["checked"] >= told["calls"]
        assert 0 < told["claimed_ms"] <= told["latency_ms"]
        assert told["joules_per_call"] is None


def test_who_returns_stale_results_there_keeps_his_bursts_and_has_none(
    run: tuple[dict[str, Row], Path, str],
) -> None:
    row = run[0]["stale"]
    assert row["status"] == "PASSED", row["reason"]
    assert row["sustained"]["status"] == "INCORRECT"
    assert "of the stretch" in row["sustained"]["reason"]
    assert "stale: no lasting time on one: INCORRECT" in run[2]


def test_the_records_are_read_back_and_compared(
    run: tuple[dict[str, Row], Path, str], typed: Typed
) -> None:
    words = ["compare", "honest", "sdpa", "--json", "--results", str(run[1] / "results")]
    code, out, err = typed(words)
    assert code == 0, err
    told = json.loads(out)["configs"]["one"]
    assert told["lasting"]["value"] > 0
    assert told["energy"] is None


def test_a_submission_is_judged_again_after_each_edit(
    tmp_path: Path, start_run: Callable[..., Any]
) -> None:
    source, output, read = put(tmp_path / "mine") / "submission.py", tmp_path / "out", 0
    suite = tmp_path / "tiny.yaml"
    suite.write_text(STORY.format(blocks=5).replace("baselines: [sdpa]", "baselines: []"))
    words = ["--submission", str(source.parent), "--suite", str(suite), "--watch"]
    words += ["--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")]
    process = start_run(words, output)

    def told(until: str = "watching ") -> list[str]:
        """What it prints up to a line that begins with `until`."""
        nonlocal read
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lines = output.read_text().splitlines()[read:]
            for number, line in enumerate(lines, 1):
                if line.startswith(until):
                    read += number
                    return lines[:number]
            time.sleep(0.02)
        raise AssertionError(lines)

    try:
        assert "✓ mine · one: PASSED" in told()
        source.write_text(GOOD + "(\n")
        assert any("does not parse" in line for line in told())
        source.write_text(GOOD + "# mended\n")
        first, *rest = told()
        assert first == "changed: submission.py"
        assert "✓ mine · two: PASSED" in rest
        idle = process_tree.descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert told("stopped watching")
        assert process.wait(60) == 0
    finally:
        process.send_signal(signal.SIGKILL)
    assert len(idle) >= 3, "judge and fork server wait for the next edit, beside who forks them"
    deadline = time.monotonic() + 10
    while any(set(usage.states(pid)) - usage.ENDED for pid in idle):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    files = (tmp_path / "results").rglob("*.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    mine = [row for row in rows if row["entry"] == "mine"]
    assert len({row["source_sha256"] for row in mine}) == 2
    assert len({row["run"] for row in mine}) == 2


# --------------------------------------------------------------------------- every axis

AXES = """\
from right_answer import attention, one_by_one

def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    edges = cu_seqlens_q.tolist()
    return one_by_one(lambda *one: attention(*one, causal, sm_scale), q, k, v, edges)
"""
CLAIMS = "{headdims: [64], dtypes: [fp16, bf16], gqa: true, seqlens: any, packed: true}"


def test_a_suite_with_every_axis_is_run_on_a_cpu(tmp_path: Path, typed: Typed) -> None:
    """Shared heads, more keys than queries, packed sequences, bf16: configs/smoke_axes.yaml."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "submission.py").write_text(AXES)
    (tmp_path / "mine" / "manifest.yaml").write_text(f"name: mine\nclaims: {CLAIMS}\n")
    shared = ROOT / "tests" / "corpus" / "right_answer.py"
    (tmp_path / "mine" / "right_answer.py").write_text(shared.read_text())
    _, out, err = typed(
        [
            *("--suite", "smoke_axes", "--json"),
            *("--submission", str(tmp_path / "mine")),
            *("--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")),
        ]
    )
    assert out.startswith("{"), err
    ended = {row["config"]: row for row in json.loads(out)["results"] if row["entry"] == "mine"}
    assert set(ended) == {"gqa", "chunk", "packed_bf16"}
    assert {row["status"] for row in ended.values()} == {"PASSED"}, ended
