"""notes: what moved everybody is told once, what moved one is told of it."""

from __future__ import annotations

import numpy as np

from harness.rank import Board, leaderboard
from harness.report.notes import Notes, joined
from harness.schema import Kind, Result, Telemetry
from tests.report.factory import CASES, timed


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
