"""notes: what moved everybody is told once, what moved one is told of it."""

from __future__ import annotations

import numpy as np

from harness.board.rank import Board, leaderboard
from harness.board.render.notes import Notes, conditions_of, joined
from harness.schema import Energy, Kind, Result, Stopping, Telemetry
from tests.board.factory import CASES, run_of, stretch, timed


def board_of(moves: dict[str, np.ndarray]) -> Board:
    """Entries whose time is a course over 20 blocks; a shared machine drifts by 5 %."""
    rng = np.random.default_rng(0)
    machine = np.linspace(0, 0.05, 20)
    results: list[Result] = []
    for config in CASES:
        base = {b: float(np.exp(machine[b] + rng.normal(0, 1e-3))) for b in range(20)}
        results.append(timed("sdpa_cudnn", config, Kind.BASELINE, base, base))
        for entry, own in moves.items():
            mine = {b: float(np.exp(machine[b] + own[b] + rng.normal(0, 1e-3))) for b in range(20)}
            results.append(timed(entry, config, Kind.SUBMISSION, mine, base))
    (board,) = leaderboard(results).boards
    return board


def test_what_moves_all_is_told_once() -> None:
    board = board_of({name: np.zeros(20) for name in "abc"})
    (line,) = Notes(board).of_machine("hdim64_seq4k")
    assert line.startswith("for all entrants the last third is 3.")
    assert "slower" in line
    assert all(Notes(board).of_entry(r) == [] for row in board.rows for r in row.results)


def test_what_moves_one_is_told_of_it_alone() -> None:
    moves = {name: np.zeros(20) for name in "abcd"}
    moves["d"] = np.linspace(0, -0.04, 20)
    board = board_of(moves)
    told = {row.entry: Notes(board).of_entry(row.results[0]) for row in board.rows}
    assert "faster than the first" in joined(told.pop("d"))
    assert set(map(joined, told.values())) == {"–"}


def test_what_was_not_judged_says_why() -> None:
    for held, said in (("unlocked/2", "unlocked: the driver"), ("cooperative", "cooperative: inp")):
        rows = [r.model_copy(update={"integrity": held}) for r in run_of({"mine": 0.8})]
        notes = Notes(leaderboard(rows).boards[0])
        assert notes.of_entry(rows[-1])[0].startswith(said)
    rows = run_of({"mine": 0.8})
    assert not any("unlocked" in n for n in Notes(leaderboard(rows).boards[0]).of_entry(rows[-1]))


def test_throttling_and_foreign_processes_are_told_of_the_machine() -> None:
    blocks = (Telemetry(throttle=("sw_power_cap",)), Telemetry(foreign_pids=2), Telemetry())
    results = [
        r.model_copy(update={"telemetry": blocks})
        for row in board_of({"a": np.zeros(20)}).rows
        for r in row.results
    ]
    (board,) = leaderboard(results).boards
    (line,) = Notes(board).of_machine("hdim64_seq4k")
    assert "clocks held down by sw_power_cap in 1 of 3 readings" in line
    assert "another process on the GPU in 1 of 3 readings" in line
    assert Notes(board).of_entry(board.rows[0].results[0]) == []


def test_conditions_are_told_as_far_as_they_are_known() -> None:
    board = board_of({"a": np.zeros(20)})
    plain = next(row for row in board.rows if row.entry == "a").results[0]
    assert conditions_of(plain) == []
    told = plain.model_copy(
        update={
            "clock_mhz": 1755.0,
            "clock_pct": 71.25,
            "drift_pct": -1.5,
            "energy": Energy(joules_per_call=None, low_j=-1.0, high_j=2.0),
            "stopping": Stopping(rule="race 3", looks=4, why="left the race after 4 blocks"),
        }
    )
    clock, drift, energy, rule = conditions_of(told)
    assert clock == "SM clock 1755 MHz, 71.2 % of the peak at that clock"
    assert "-1.5 %" in drift
    assert energy == "energy not resolved in 20 blocks: [-1, 2] J a call"
    assert "race 3; intervals hold at all of its 4 looks" in rule
    assert "left the race after 4 blocks" in Notes(board).of_entry(told)
    known = told.model_copy(update={"energy": Energy(joules_per_call=0.4, low_j=0.38, high_j=0.42)})
    assert conditions_of(known)[2] == "energy 0.4 [0.38, 0.42] J a call"


def test_what_lasts_is_told_with_its_clock_power_and_energy() -> None:
    told = board_of({"a": np.zeros(20)}).rows[0].results[0]
    (line,) = conditions_of(told.model_copy(update={"sustained": stretch(0.7)}))
    assert line == (
        "lasting: 392.7 TFLOP/s, 0.7000 ms over 2000 calls, 1500 MHz, 660 W, 1.68 pJ/FLOP ± 0.5 %"
    )
