"""The process that schedules is killed: its units end, and --resume does what is left, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.board import record
from harness.board.store import Store
from harness.campaign.campaign import Campaign
from harness.campaign.local import Local
from harness.campaign.unit import plan_units
from harness.cli.dispatch import recorded_in
from harness.process import process_tree
from harness.process.project import HOME as ROOT
from harness.schema import Result
from tests.campaign.units import NULL, SUITE, Watched, conclude, counted, once, request

NAMES = ("n0", "n1", "slow-2", "n3")
HEAD = """
import sys
from pathlib import Path
from tests.campaign.test_head_killed import head
head(Path(sys.argv[1]))
"""


def local(places: int) -> Local:
    return Local(["none"] * places, command=(sys.executable, "-m", NULL))


def head(results: Path) -> None:
    Campaign(local(1), plan_units(request(NAMES)), Store(results).save, Watched()).run()


def rows(results: Path) -> list[Result]:
    found, bad = record.load(results)
    assert not bad
    return found


def test_resume_after_the_head_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    monkeypatch.setenv("NULL_UNIT_SLOW_S", "120")
    process = subprocess.Popen([sys.executable, "-c", HEAD, str(tmp_path)], cwd=ROOT)
    try:
        while counted(rows(tmp_path)).total() < 5:  # the slow one has told its first case
            assert process.poll() is None
            time.sleep(0.05)
        (unit,) = process_tree.children(process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    while Path(f"/proc/{unit}").exists() and "State:\tZ" not in _status(unit):
        time.sleep(0.05)  # the unit ends by itself, long before its 120 s

    monkeypatch.setenv("NULL_UNIT_SLOW_S", "0")
    known = recorded_in(tmp_path, request(NAMES), "cpu")
    left = plan_units(request(NAMES), recorded=known.__contains__)
    assert [(unit.names, unit.cases) for unit in left] == [
        (("slow-2",), ("two",)),
        (("n3",), ("one", "two")),
    ]
    Campaign(local(2), left, Store(tmp_path).save, Watched()).run()
    assert counted(rows(tmp_path)) == once(NAMES)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return "State:\tZ"


def test_nothing_left_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    store = Store(tmp_path)
    found, _ = conclude(local(2), plan_units(request(NAMES[:2])))
    for row in found:
        store.save(row)
    known = recorded_in(tmp_path, request(NAMES[:2]), "cpu")
    assert plan_units(request(NAMES[:2]), recorded=known.__contains__) == []
