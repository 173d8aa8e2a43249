"""A wrong baseline, run by the whole program on a CPU: refused by name, and nobody else loses a row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.selftest.corpus import honest_control

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
WRONG = ("mask_off_by_one", "wrong_layout")
ABSENT = "flash_attn_3"  # in no test environment: it is built from source, for a GPU


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict]:
    """One small run with two right entries, two wrong baselines and one that is not installed."""
    results = tmp_path_factory.mktemp("results")
    baselines = ["sdpa", *(f"tests/bad_baselines/{name}.py" for name in WRONG), ABSENT]
    command = [sys.executable, "run.py", "--suite", "smoke", "--blocks", "2", "--causal", "true"]
    command += ["--headdim", "64", "--seqlen", "64", "--heads", "2", "--batch", "1"]
    command += ["--submission", str(honest_control("eager_chunked"))]
    command += ["--baselines", ",".join(baselines)]
    command += ["--results", str(results), "--leaderboard", str(results / "board.md")]
    done = subprocess.run(  # exit 1: a row failed, as it should
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    lines = [line for file in results.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert lines, done.stdout + done.stderr
    return {row["entry"].split("/")[-1]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_baseline_is_refused_and_gets_no_time(rows, name):
    row = rows[name]
    assert row["status"] == "INVALID_BASELINE"
    assert row["latency_ms"] is None
    assert not row["correct"]


@pytest.mark.parametrize("name", ["sdpa", "eager_chunked"])
def test_the_right_ones_of_the_same_run_lose_nothing(rows, name):
    assert rows[name]["status"] == "PASSED", rows[name]["reason"]
    assert rows[name]["correct"]


def test_one_that_is_not_installed_says_how_to_install_it(rows):
    row = rows[ABSENT]
    assert row["status"] == "UNAVAILABLE"
    assert "pip install flash-attn-3 --no-deps" in row["reason"]
