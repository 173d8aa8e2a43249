"""Kernels of a test, run with stretches on one small shape."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = """\
name: tiny
against: sdpa_cudnn
baselines: [sdpa_cudnn]
blocks: 5
warmup_blocks: 2
cases:
  - {name: one, batch: 2, heads: 16, seqlen: 4096, headdim: 128, causal: true, burst: 6}
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`run.py` with these words."""
    return subprocess.run(
        [sys.executable, "run.py", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def run_lasting(home: Path, sources: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Each of `sources` an entry of its own, with `--json`; records in `home`/results."""
    (home / "tiny.yaml").write_text(SUITE)
    for name, source in sources.items():
        (home / name).mkdir()
        (home / name / "submission.py").write_text(source)
        (home / name / "manifest.yaml").write_text(f"name: {name}\nclaims: {{headdims: [128]}}\n")
    return run(
        *("--suite", str(home / "tiny.yaml"), "--json", "--sustained", "1"),
        *("--submission", ",".join(str(home / name) for name in sources)),
        *("--results", str(home / "results"), "--leaderboard", str(home / "board.md")),
    )
