"""benchmarks/honest_runs.py: what counts as a burst, and as a false verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from honest_runs import counted, table, tallies

from harness import PROTOCOL
from harness.board import record
from harness.schema import Result, Sample, Status
from tests.board.factory import result

BURSTS = tuple(Sample(block=b, calls_ms=(1.0,), t2_ms=1.01, late=b == 2) for b in range(5))


def row(entry: str, run: str, **told: object) -> Result:
    return result(entry, **{"run": run, "samples": BURSTS, "protocol": PROTOCOL, **told})


def test_bursts_are_counted_one_by_one_and_runs_once() -> None:
    rows = [row("a", "1"), row("a", "2"), row("b", "2", config="hdim128_seq8k")]
    found = tallies([*rows, row("a", "3", protocol=PROTOCOL - 1)])
    assert list(found) == ["a", "b", "all"]
    assert [len(one.runs) for one in found.values()] == [2, 1, 2]
    assert [one.bursts for one in found.values()] == [10, 5, 15]
    assert found["all"].late == 3
    assert "| a | 2 | 2 | 10 | 2 | 0 | PASSED 2 |" in table(found)


@pytest.mark.parametrize(
    ("status", "false"),
    [
        (Status.TIME_CLAIM_REJECTED, 1),
        (Status.LEFT_WORK_RUNNING, 1),
        (Status.INCORRECT, 1),
        (Status.CONTENDED, 0),
        (Status.UNSTABLE, 0),
    ],
)
def test_what_blames_a_kernel_is_a_false_verdict(
    status: Status, false: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row("a", "1"), row("a", "2", status=status, reason="it did nothing")]
    assert tallies(rows)["a"].false == false
    for each in rows:
        record.append(tmp_path, each)
    assert counted([tmp_path]) == false
    assert f"{status.value} 1" in capsys.readouterr().out


def test_no_bursts_are_no_evidence(tmp_path: Path) -> None:
    assert counted([tmp_path]) == 1
