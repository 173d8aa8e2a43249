"""`rank`: rebuild leaderboard.md, its picture and the page from the records alone."""

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
from harness.report import markdown, page, picture
from harness.report.history import history

ROOT = Path(__file__).resolve().parents[2]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "rank", help="rebuild leaderboard.md and .html from results/ alone"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "results", metavar="DIR")
    parser.add_argument("--board", type=Path, default=ROOT / "leaderboard.md", metavar="FILE")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the board is not current"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when `--check` finds another board than the records give."""
    board, bad, files = publish(args.results, args.board)
    for line in bad:
        print(f"left out: {line}", file=sys.stderr)
    if args.check:
        page = args.board.with_suffix(".html")  # carries NOTES.md too; rebuilt, never compared
        return max(_check(path, text) for path, text in files.items() if path != page)
    for path, text in files.items():
        write(path, text)
    rows = sum(len(one.rows) for one in board.boards)
    print(f"{', '.join(map(str, files))}: {len(board.boards)} boards, {rows} rows")
    return EXIT_OK


def build(results_dir: Path) -> tuple[Leaderboard, list[record.BadLine]]:
    """The boards that `results_dir` holds, and the lines that had to be left out."""
    board, bad, _ = _read(results_dir)
    return board, bad


def publish(
    results_dir: Path, board_path: Path
) -> tuple[Leaderboard, list[record.BadLine], dict[Path, str]]:
    """The same, and every file that shows it: leaderboard.md, its picture and the page."""
    board, bad, heads = _read(results_dir)
    drawing = picture.render(board)
    files = {board_path: markdown.render(board, picture="docs/board.svg" if drawing else "")}
    if drawing:
        files[board_path.parent / "docs" / "board.svg"] = drawing
    page_path = board_path.with_suffix(".html")
    files[page_path] = page.render(board, history(heads), _notes(board_path.parent, board))
    return board, bad, files


def _read(results_dir: Path) -> tuple[Leaderboard, list[record.BadLine], list[record.Head]]:
    heads, bad = record.heads(results_dir)
    results, worse = record.read(newest(heads))
    bad = sorted([*bad, *worse], key=str)
    return leaderboard(results, bad_lines=len(bad)), bad, heads


def _notes(root: Path, board: Leaderboard) -> dict[str, str]:
    """NOTES.md of every entry whose folder is in this checkout."""
    found: dict[str, str] = {}
    for row in (row for one in board.boards for row in one.rows):
        for folder in ("submissions", "baselines"):
            base = (root / folder).resolve()
            path = (base / row.entry / "NOTES.md").resolve()
            if path.is_relative_to(base) and path.is_file():
                found[row.entry] = path.read_text(encoding="utf-8", errors="replace")
    return found


def write(path: Path, content: str) -> None:
    """Replace the file as a whole: a reader sees the old board or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
