"""What the benchmarks compute by themselves: counts, queues, races."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from honest_runs import counted, table, tallies
from queue_model import CONFIGS, Config, finish, imbalance

from benchmarks import racing
from harness import PROTOCOL
from harness.board import record
from harness.catalog.suites import load_suite
from harness.schema import Result, Sample, Status
from tests.board.factory import result

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

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


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


def test_a_reserve_is_not_handed_on():
    """Two SMs, items of 8, 1, 4 and 4 tiles: asked for early, the third is bound to the SM that has the first."""
    assert finish([8, 1, 4, 4], 2, 0, late=False) == [12, 5]
    assert finish([8, 1, 4, 4], 2, 0, late=True) == [8, 9]


def test_an_item_that_fills_up_a_section_costs_nothing():
    assert finish([2, 0, 2, 0], 1, 1, late=True) == [6]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("late", [False, True])
def test_all_the_work_is_done_once(name: str, late: bool):
    tiles = CONFIGS[name].items(32)
    assert sum(finish(tiles, 1, 0, late)) == sum(tiles)
    ends = finish(tiles, 132, 1.5, late)
    assert 1 <= imbalance(ends) < 1.2


def test_items_run_longest_first_within_a_section():
    config = Config(heads=3, seqlen=256, headdim=64, rows=64, keys=64)
    assert config.section(1024) == 2
    assert config.items(1024) == [0, 4, 0, 3, 0, 2, 0, 1, 4, 4, 3, 3, 2, 2, 1, 1]


def test_the_shortest_items_of_all_heads_come_last():
    config = Config(heads=3, seqlen=256, headdim=64, rows=64, keys=64, short_last=True)
    assert config.items(1024) == [0, 4, 0, 3, 4, 4, 3, 3, 0, 2, 2, 2, 0, 1, 1, 1]


def test_a_section_that_heads_do_not_fill_and_a_block_that_rows_do_not_come_where_they_cost_least():
    config = CONFIGS["2,655 rows, 168 heads"]
    assert config.items(32)[:32] == [0] * 24 + [42] * 8
    assert config.items(32)[-32:] == [2] * 32
    assert imbalance(finish(config.items(32), 132, 1.5, late=True)) < 1.02


SUITE = load_suite("fa3", Path(__file__).resolve().parents[2] / "configs")


def test_noise_is_what_the_record_scatters_by() -> None:
    noise = racing.noise_of(racing.best_records())
    assert {one.config for one in noise} == {case.name for case in SUITE.cases}
    for one in noise:
        assert 0.0005 < np.std(one.residuals) < 0.01
        assert abs(np.median(one.residuals)) < 0.0005
        assert one.turn_ms(0.0) == pytest.approx(one.gap_ms + one.calls * one.best_ms)


def test_a_race_agrees_with_the_full_run_for_less() -> None:
    noise = racing.noise_of(racing.best_records())
    wide = racing.FIELDS["wide: up to twice as slow"]
    told = racing.one_race(1, wide, 16, noise, SUITE)
    assert told.same
    assert 0.3 < told.share < 0.5
    assert 4 <= told.mean_blocks < 9
