"""`history NAME`: every run of one entry over time, and where its speed-up made a step."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from harness import record, stats
from harness.commands import _shared
from harness.errors import EXIT_OK
from harness.record import Head
from harness.report.text import times, wash
from harness.schema import Status
from harness.stats import Interval


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one entry on one board."""

    board: tuple[str, str, str, int]  # gpu, suite, suite hash, protocol
    date: str
    run: str
    source: str
    speedup: Interval | None
    configs: int
    failed: str


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "history", help="every run of one entry, and where its speed-up made a step"
    )
    parser.add_argument("name")
    _shared.add_results(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 with the nearest name if there is no such entry."""
    heads, _ = record.heads(args.results)
    wanted = [h for h in heads if _shared._asked(args, h.suite, h.gpu)]
    mine = [h for h in wanted if h.entry == args.name]
    if not mine:
        raise _shared.unknown(args.name, sorted({h.entry for h in wanted}))
    points = history(mine)
    for board in dict.fromkeys(point.board for point in points):
        print(
            f"{args.name} on {wash(board[0])} · {wash(board[1])} (suite {board[2][:8]}, protocol {board[3]})"
        )
        print(_shared.table(_rows([p for p in points if p.board == board]), indent="  "))
    print(f"next: python run.py compare {args.name}@RUN {args.name}@OTHER_RUN")
    return EXIT_OK


def history(heads: list[Head]) -> list[Point]:
    """Points in order of time; the speed-up is the geometric mean over the configs of the run."""
    runs: dict[tuple[object, ...], list[Head]] = {}
    for head in heads:
        runs.setdefault((head.gpu, head.suite_sha256, head.protocol, head.run), []).append(head)
    points = [_point(lines) for lines in runs.values()]
    return sorted(points, key=lambda p: (p.board, p.date, p.run))


def _point(lines: list[Head]) -> Point:
    first = lines[0]
    failed = [h for h in lines if h.status != Status.PASSED.value]
    told = [h.speedup for h in lines if h.speedup]
    ratios = [Interval(*one[1:]) for one in told]
    whole = not failed and len(ratios) == len(lines) and len({one[0] for one in told}) == 1
    return Point(
        board=(first.gpu, first.suite, first.suite_sha256, first.protocol),
        date=first.date,
        run=first.run,
        source=first.source_sha256,
        speedup=stats.geomean(ratios) if whole else None,
        configs=len(lines),
        failed="; ".join(f"{h.config}: {h.status}" for h in failed),
    )


def step(before: Point | None, now: Point) -> str:
    """What changed since the point before: its source, and whether its speed-up is told apart."""
    if before is None:
        return "first"
    parts = ["new source"] if before.source != now.source else []
    if before.speedup and now.speedup and before.configs == now.configs:
        change = stats.quotient(now.speedup, before.speedup)
        if not change.holds(1.0):
            parts.append(
                f"{'faster' if change.value > 1 else 'slower'} by {abs(change.value - 1):.1%}"
            )
    return ", ".join(parts)


def _rows(points: list[Point]) -> list[list[str]]:
    rows = [["date", "run", "source", "configs", "speed-up [95 %]", "since the run before"]]
    before: Point | None = None
    for point in points:
        told = (
            times(point.speedup)
            if point.speedup
            else wash(point.failed, 80) or "no baseline beside it"
        )
        rows.append(
            [
                point.date[:10],
                wash(point.run, 40),
                point.source[:8],
                str(point.configs),
                told,
                step(before, point),
            ]
        )
        before = point
    return rows
