"""What a reader must know about the samples behind a row, in words.

Heat and clocks move every entrant of a run alike and cancel in the paired score, so they are told
once per config. What is left after dividing by the run's own course is told of each entrant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness import stats
from harness.rank import Board, block_times_ms
from harness.schema import Result


def course(board: Board, config: str, run: str) -> dict[int, float]:
    """Block → how slow it was for everybody of `run` on `config`; 1 is usual."""
    ratios: dict[int, list[float]] = {}
    for row in board.rows:
        result = row.on(config)
        if result is None or result.run != run or not result.scored:
            continue
        mine = block_times_ms(result)
        middle = stats.summary(list(mine.values())).median
        for block, time in mine.items():
            ratios.setdefault(block, []).append(math.log(time / middle))
    return {
        block: math.exp(stats.summary(logs).median)
        for block, logs in sorted(ratios.items())
        if len(logs) > 1
    }


def of_machine(board: Board, config: str) -> list[str]:
    """What happened to all entrants of a run at once."""
    runs = sorted({r.run for row in board.ranked for r in row.results if r.config == config})
    lines = []
    for run in runs:
        moved = course(board, config, run)
        found = [finding.text for finding in stats.findings(moved) if finding.kind == "drift"]
        if found:
            name = f"run {run}: " if len(runs) > 1 else ""
            lines.append(f"{name}for all entrants {'; '.join(found)} (cancels in the speed-up)")
    return lines


def of_entry(board: Board, result: Result) -> list[str]:
    """What happened to one entrant and to nobody else."""
    moved = course(board, result.config, result.run)
    mine = block_times_ms(result)
    own = {block: time / moved.get(block, 1.0) for block, time in mine.items()}
    found = [finding.text for finding in stats.findings(own)] if own else []
    late = sum(sample.late for sample in result.samples)
    if late:
        found.append(f"{late} disturbed bursts not scored")
    return [*found, *_telemetry(result)]


def _telemetry(result: Result) -> list[str]:
    reasons = sorted({reason for block in result.telemetry for reason in block.throttle})
    foreign = sum(block.foreign_pids > 0 for block in result.telemetry)
    found = [f"throttled: {', '.join(reasons)}"] if reasons else []
    if foreign:
        found.append(f"another process on the GPU in {foreign} blocks")
    return found


def joined(lines: Sequence[str]) -> str:
    """All of them in one cell."""
    return "; ".join(lines) or "–"
