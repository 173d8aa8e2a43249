"""`--sustained` on a CPU from end to end: a lasting time beside the bursts, and none for who lies there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SUITE = """\
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
Row = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Row], Path, str]:
    home = tmp_path_factory.mktemp("sustained")
    (home / "tiny.yaml").write_text(SUITE)
    for name, source in {"honest": HONEST, "stale": STALE}.items():
        (home / name).mkdir()
        (home / name / "submission.py").write_text(source)
        (home / name / "manifest.yaml").write_text(f"name: {name}\nclaims: {{headdims: [16]}}\n")
    done = subprocess.run(
        [
            *(sys.executable, "run.py", "--suite", str(home / "tiny.yaml"), "--json"),
            *("--submission", f"{home / 'honest'},{home / 'stale'}", "--sustained", "0.2"),
            *("--results", str(home / "results"), "--leaderboard", str(home / "board.md")),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stderr
    rows = {row["entry"]: row for row in json.loads(done.stdout)["results"]}
    return rows, home, done.stderr


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


def test_the_records_are_read_back_and_compared(run: tuple[dict[str, Row], Path, str]) -> None:
    words = [sys.executable, "run.py", "compare", "honest", "sdpa", "--json"]
    done = subprocess.run(
        [*words, "--results", str(run[1] / "results")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)["configs"]["one"]
    assert told["lasting"]["value"] > 0
    assert told["energy"] is None
