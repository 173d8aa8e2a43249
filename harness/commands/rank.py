"""`rank`: rebuild leaderboard.md from the records alone; `--check` says whether it is current."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from pathlib import Path

from harness import record
from harness.errors import EXIT_OK, EXIT_SUBMISSION_FAILED, StorageError
from harness.rank import Leaderboard, leaderboard, newest
from harness.report import markdown

ROOT = Path(__file__).resolve().parents[2]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("rank", help="rebuild leaderboard.md from results/ alone")
    parser.add_argument("--results", type=Path, default=ROOT / "results", metavar="DIR")
    parser.add_argument("--board", type=Path, default=ROOT / "leaderboard.md", metavar="FILE")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the board is not current"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when `--check` finds another board than the records give."""
    board, bad = build(args.results)
    for line in bad:
        print(f"left out: {line}", file=sys.stderr)
    rebuilt = text(board)
    if args.check:
        return _check(args.board, rebuilt)
    write(args.board, rebuilt)
    rows = sum(len(one.rows) for one in board.boards)
    print(f"{args.board}: {len(board.boards)} boards, {rows} rows")
    return EXIT_OK


def build(results_dir: Path) -> tuple[Leaderboard, list[record.BadLine]]:
    """The boards that `results_dir` holds, and the lines that had to be left out."""
    heads, bad = record.heads(results_dir)
    results, worse = record.read(newest(heads))
    bad = sorted([*bad, *worse], key=str)
    return leaderboard(results, bad_lines=len(bad)), bad


def text(board: Leaderboard) -> str:
    """leaderboard.md."""
    return markdown.render(board)


def write(path: Path, content: str) -> None:
    """Replace the file as a whole: a reader sees the old board or the new one."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write the board: {error.strerror or error}",
            "free space or permissions there, then `python run.py rank`; the records are safe",
        ) from error


def _check(path: Path, rebuilt: str) -> int:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if old == rebuilt:
        print(f"{path}: current")
        return EXIT_OK
    diff = difflib.unified_diff(old.splitlines(), rebuilt.splitlines(), "board", "records", n=0)
    for line in list(diff)[:20]:
        print(line)
    print(f"{path}: not what the records give\n  next: python run.py rank", file=sys.stderr)
    return EXIT_SUBMISSION_FAILED
