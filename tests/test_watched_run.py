"""`run.py --watch` on a CPU: run, edited into nonsense, mended, ended; one process all along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.process import process_tree
from tests.test_story import GOOD, SUITE, put

ROOT = Path(__file__).resolve().parents[1]


def told(process: subprocess.Popen[str], until: str = "watching ") -> list[str]:
    """What it prints up to a line that begins with `until`; all of it if it ends before."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(until):
            break
    return lines


def test_a_submission_is_judged_again_after_each_edit(tmp_path: Path) -> None:
    source = put(tmp_path / "mine") / "submission.py"
    suite = tmp_path / "tiny.yaml"
    suite.write_text(SUITE.format(blocks=5).replace("baselines: [sdpa]", "baselines: []"))
    words = [sys.executable, "run.py", "--submission", str(source.parent), "--suite", str(suite)]
    words += ["--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")]
    process = subprocess.Popen(
        [*words, "--watch"], cwd=ROOT, env=os.environ | {"PYTHONUTF8": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
    )  # fmt: skip
    try:
        assert "✓ mine · one: PASSED" in told(process)
        source.write_text(GOOD + "(\n")
        assert any("does not parse" in line for line in told(process))
        source.write_text(GOOD + "# mended\n")
        first, *rest = told(process)
        assert first == "changed: submission.py"
        assert "✓ mine · two: PASSED" in rest
        idle = process_tree.descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert any(line.startswith("stopped watching") for line in told(process))
        assert process.wait() == 0
    finally:
        process.kill()
        process.communicate()
    assert len(idle) >= 2, "a judge and a fork server wait for the next edit"
    assert not any(Path(f"/proc/{pid}").exists() for pid in idle)
    files = (tmp_path / "results").rglob("*.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    mine = [row for row in rows if row["entry"] == "mine"]
    assert len({row["source_sha256"] for row in mine}) == 2
    assert len({row["run"] for row in mine}) == 2
