"""What several commands need: where things lie, the newest lines, and an entry by its name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.board import record
from harness.board.rank import Board, Leaderboard, Row, leaderboard, newest
from harness.board.render.text import wash
from harness.catalog.entrants import entry_name
from harness.errors import UnavailableError, UsageError, did_you_mean

ROOT = Path(__file__).resolve().parents[2]


def add_results(parser: argparse.ArgumentParser) -> None:
    """--results, --suite and --on: which lines are meant."""
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results", metavar="DIR", help="where records lie"
    )
    parser.add_argument("--suite", metavar="NAME", help="only this suite")
    parser.add_argument("--on", metavar="GPU", help="only GPUs whose name contains this")


def boards(args: argparse.Namespace) -> Leaderboard:
    """The boards as `rank` builds them, cut down to --suite and --on."""
    heads, bad = record.heads(args.results)
    wanted = [h for h in heads if _asked(args, h.suite, h.gpu)]
    results, worse = record.read_chosen(wanted, newest)
    if not results:
        what = " ".join(
            f"--{flag} {value}" for flag, value in (("suite", args.suite), ("on", args.on)) if value
        )
        raise UnavailableError(
            f"{args.results}: no results{f' for {what}' if what else ''}",
            "python run.py --submission triton_template",
        )
    return leaderboard(results, bad_lines=len(bad) + len(worse))


def boards_of(entry: str, found: Leaderboard) -> list[tuple[Board, Row]]:
    """Every board that `entry` stands on."""
    entry = entry_name(entry)
    rows = [(board, row) for board in found.boards for row in board.rows if row.entry == entry]
    if not rows:
        known = sorted({row.entry for board in found.boards for row in board.rows})
        raise unknown(entry, known)
    return rows


def unknown(entry: str, known: Iterable[str]) -> UsageError:
    """No such entry, and the nearest one."""
    names = [wash(name, 80) for name in known]
    hint = did_you_mean(entry, names) or f"entries with results: {', '.join(names)}"
    if not names:
        hint = "python run.py list; or another --results, --suite or --on: no record passes these"
    return UsageError(f"'{entry}': no results under that name", hint)


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Columns, left-aligned but for figures; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _asked(args: argparse.Namespace, suite: str, gpu: str) -> bool:
    return (not args.suite or suite == args.suite) and (
        not args.on or args.on.lower() in gpu.lower()
    )
