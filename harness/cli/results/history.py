"""`history NAME`: every run of one entry over time, and where its speed-up made a step."""

import argparse

from harness.board import query
from harness.board.history import Point, document, history
from harness.board.render.text import DOUBT, sanitize, times
from harness.errors import Exit, typed
from harness.process.text import dumps


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("name")
    query.add_json(parser)
    query.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 with the nearest name if there is no such entry."""
    wanted, _ = query.heads(args, args.name)
    points = history(query.of_entry(wanted, args.name))
    if args.json:
        print(dumps({"entry": args.name, "points": document(points)}))
        return Exit.OK
    for board in dict.fromkeys(point.board for point in points):
        on = f"{sanitize(board[0])} · {board[1]} (suite {board[2][:8]}, protocol {board[3]})"
        print(f"{args.name} on {on}")
        print(query.table(_rows([p for p in points if p.board == board]), indent="  "))
    if any(point.doubtful for point in points):
        print(f"{DOUBT} not judged, or a figure that no board ranks")
    print(typed(f"next: python run.py compare {args.name}@RUN {args.name}@OTHER_RUN"))
    return Exit.OK


def _rows(points: list[Point]) -> list[list[str]]:
    rows = [["date", "run", "source", "configs", "speed-up [95 %]", "since the run before"]]
    for p in points:
        failed = sanitize(p.failed, 80) or "no baseline beside it"
        ratio = f"{times(p.speedup)}{DOUBT * p.doubtful} over {p.against}" if p.speedup else failed
        rows.append([p.date[:10], p.run[:40], p.source[:8], str(len(p.configs)), ratio, p.since])
    return rows
