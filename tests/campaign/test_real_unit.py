"""The real process of a unit, on the CPU: a campaign through run.py, and a unit whose owner is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.generate_submissions import generate
from harness.board import record
from harness.campaign.local import COMMAND
from harness.campaign.unit import plan_units, to_text
from harness.catalog.request import resolve
from harness.process.project import HOME as ROOT
from harness.schema import Case, Machine, Status, Suite

CASE = Case(name="one", batch=1, heads=2, seqlen=48, headdim=64, burst=2)
SUITE = Suite(name="tiny", device="cpu", cases=(CASE,), against="sdpa", blocks=3)


def test_a_campaign_and_nothing_left_for_resume(tmp_path: Path) -> None:
    generate(tmp_path / "generated", 1)
    suite = tmp_path / "tiny.yaml"
    suite.write_text(json.dumps(SUITE.model_dump(mode="json")), encoding="utf-8")
    command = [
        *(sys.executable, "run.py", "-s", str(tmp_path / "generated"), "--suite", str(suite)),
        *("--baselines", "sdpa", "--gpus", "1", "--resume", "--json"),
        *("--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")),
    ]
    first, again = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    rows = json.loads(first.stdout)["results"]
    assert [(row["entry"], row["status"]) for row in rows] == [
        ("sdpa", "PASSED"),
        ("g00000", "PASSED"),
    ]
    assert "--gpus 1: suite 'tiny' runs without a GPU, 1 units at once" in first.stderr
    assert "1/1 units" in first.stderr
    assert json.loads(again.stdout) == {"results": []}
    assert "0 of 1 still to be recorded" in again.stderr


def test_a_unit_whose_owner_is_gone_tells_what_it_has_and_ends(tmp_path: Path) -> None:
    generate(tmp_path / "generated", 1)
    suite = SUITE.model_copy(update={"blocks": 5000})
    asked = resolve([str(tmp_path / "generated")], [], suite, Machine(), "sdpa", ROOT)
    (unit,) = plan_units(asked)
    unit = unit.model_copy(update={"cache": tmp_path / "cache"})
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "--gpu", "none"], cwd=ROOT, stdin=pipe, stdout=pipe) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(to_text(unit).encode() + b"\n")
        child.stdin.flush()
        told: list[dict[str, Any]] = []
        for line in child.stdout:
            told.append(json.loads(line))
            if told[-1]["op"] == "block":
                child.stdin.close()
                break
        told += [json.loads(line) for line in child.stdout]
    assert told[0]["op"] == "hello"
    (row,) = [record.parse(t["line"].encode()) for t in told if t["op"] == "result"]
    assert row.entry == "g00000"
    # with five blocks or more an interrupted case keeps its figure
    assert row.status is Status.INTERRUPTED or row.blocks < 5000
    assert child.returncode != 0
