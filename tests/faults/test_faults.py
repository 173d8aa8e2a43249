"""A handful of the faults of benchmarks/faults.py: no row is lost or doubled, no process is left."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import faults  # noqa: E402

#: Fewer blocks, shorter deadlines; of `faults.MILESTONES` the last ones are blocks 2 and 0 of two cases.
SUITE = faults.SUITE.replace("blocks: 12", "blocks: 6").replace(
    "first_call_s: 8, burst_s: 8", "first_call_s: 4, burst_s: 4, again_s: 1"
)

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[faults.Lab]:
    """A lab whose tally must be clean in the end."""
    made = faults.Lab(tmp_path, random.Random(20), faults.Tally())
    made.suite.write_text(SUITE)
    yield made
    assert made.tally.injected.total() > 0
    assert made.tally.lost == []
    assert made.tally.doubled == []
    assert made.tally.left == []


ROLES = {"judge": "judge", "worker.forkserv": "nursery", faults.WORKER_NAME: "worker"}


def forked(lab: faults.Lab, start_run: Callable[..., Any]) -> faults.Lab:
    """The same; its runs are forks, of which none imports torch."""

    def start(entries: list[Path], results: Path) -> Any:
        words = ["--suite", str(lab.suite), "--submission", ",".join(map(str, entries))]
        words += ["--results", str(results), "--leaderboard", f"{results}.md"]
        return start_run(words, Path(f"{results}.out"))

    lab.start = start
    return lab


@pytest.fixture
def forked_lab(
    lab: faults.Lab, start_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> faults.Lab:
    """Forks tell by name what they are."""

    def role(pid: int) -> str:
        with contextlib.suppress(OSError):
            return ROLES.get(Path(f"/proc/{pid}/comm").read_text().strip(), "")
        return ""

    monkeypatch.setattr(faults, "_role", role)
    return forked(lab, start_run)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, start_run: Callable[..., Any]) -> Path:
    """Rows of a run without a fault."""
    made = faults.Lab(tmp_path_factory.mktemp("sound"), random.Random(1), faults.Tally())
    made.suite.write_text(SUITE)
    results = faults.sound_run(forked(made, start_run))
    assert made.tally.lost == []
    return results


def test_results_cut_at_random_bytes(lab: faults.Lab, sound: Path) -> None:
    faults.truncate(lab, sound, 40)


def test_a_full_disk_in_the_middle_of_a_line(lab: faults.Lab, sound: Path) -> None:
    faults.disk_full(lab, sound, 3)


def test_workers_that_break_cost_nobody_else_a_row(forked_lab: faults.Lab) -> None:
    faults.workers_die(forked_lab)


@pytest.mark.parametrize("role", ["engine", "judge", "nursery", "worker"])
def test_kill_9(forked_lab: faults.Lab, role: str) -> None:
    faults.surely(partial(faults.kill, role=role), forked_lab)


def test_ctrl_c(forked_lab: faults.Lab) -> None:
    faults.surely(faults.interrupt, forked_lab)


def test_two_runs_at_once(forked_lab: faults.Lab) -> None:
    faults.two_at_once(forked_lab)


def test_the_tally_can_see_a_lost_row(tmp_path: Path, sound: Path) -> None:
    made = faults.Lab(tmp_path, random.Random(1), faults.Tally())
    results = tmp_path / "results"
    (results / "cpu").mkdir(parents=True)
    source = next(sound.glob("*/*.jsonl"))
    lines = source.read_bytes().splitlines(keepends=True)
    (results / "cpu" / source.name).write_bytes(b"".join([*lines[1:], lines[-1]]))
    Path(f"{results}.out").write_text("")
    entries = [tmp_path / "honest", tmp_path / "second"]
    made.check("planted", entries, results, complete=True)
    assert len(made.tally.lost) == 1
    assert len(made.tally.doubled) == 1
