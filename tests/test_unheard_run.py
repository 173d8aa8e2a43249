"""A run whose output nobody takes: every row is recorded, the board is written, the exit code says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.board import record

ROOT = Path(__file__).resolve().parents[1]
KERNEL = """
import torch.nn.functional as F

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""
SUITE = """
name: tiny
device: cpu
against: sdpa
baselines: [sdpa]
blocks: 2
warmup_blocks: 0
cases: [{name: one, batch: 1, heads: 1, seqlen: 32, headdim: 64, burst: 2}]
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("| head -1", 141),
        ("2>&1 | true", 141),
        ("> /dev/full", 0),
        ("2> /dev/full > /dev/full", 0),
        (">&-", 0),
        (">&- 2>&- <&-", 0),
        ("--json > /dev/full", 5),
    ],
)
def test_output_that_fails_ends_no_measurement(where: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "tiny.yaml").write_text(SUITE)
    results = tmp_path / "results"
    run = f"{sys.executable} run.py --submission {tmp_path}/mine.py --suite {tmp_path}/tiny.yaml"
    line = f"{run} --results {results} {where}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    rows, bad = record.load(results)
    assert sorted((row.entry, row.status.value) for row in rows) == [
        ("mine", "PASSED"),
        ("sdpa", "PASSED"),
    ]
    assert not bad
    assert (results / "cpu" / "leaderboard.md").is_file()
