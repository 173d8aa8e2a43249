"""`--race` and `--until` on a CPU: the slow leave early, all rows are kept and say why they ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.board import record
from harness.board.rank import leaderboard

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
    time.sleep(WAIT_S)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
#: Far enough apart that no other load on the machine can turn them round.
WAITS_S = {"quick": 0.01, "slow": 0.12, "slower": 0.2}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def race(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Row], Path, str]:
    home = tmp_path_factory.mktemp("race")
    (home / "tiny.yaml").write_text(SUITE)
    for name, wait_s in WAITS_S.items():
        (home / name).mkdir()
        (home / name / "submission.py").write_text(KERNEL.replace("WAIT_S", str(wait_s)))
        (home / name / "manifest.yaml").write_text(f"name: {name}\nclaims: {{headdims: [16]}}\n")
    done = subprocess.run(
        [
            *(sys.executable, "run.py", "--suite", str(home / "tiny.yaml"), "--json"),
            *("--submission", ",".join(str(home / name) for name in WAITS_S)),
            *("--race", "1", "--until", "50%", "--time-limit", "1"),
            *("--results", str(home / "results"), "--leaderboard", str(home / "board.md")),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stderr
    rows = {row["entry"]: row for row in json.loads(done.stdout)["results"]}
    return rows, home / "results", done.stderr


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
    results, bad = record.load(race[1])
    assert not bad
    assert len(leaderboard(results).boards) == 1
    assert "race: after 4 blocks" in race[2]
