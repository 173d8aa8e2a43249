"""`rank`: rebuild leaderboard.md, its picture, the page and what documents quote, from the records alone.

leaderboard.md is made of the GPUs under results/, which are committed. A try-out on a CPU is ranked by
nobody and committed by nobody: it has a board of its own beside its records, results/cpu/leaderboard.md,
which git ignores. Records elsewhere (--results DIR) have their boards there: the committed one stays as it
is. A board that is named with --board holds everything.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness import record
from harness.commands import _shared
from harness.errors import (
    EXIT_OK,
    EXIT_SUBMISSION_FAILED,
    StorageError,
    SubmissionError,
    UsageError,
)
from harness.rank import Leaderboard, leaderboard, newest
from harness.report import export, markdown, page, picture, quoted
from harness.report.history import history
from harness.schema import Machine
from harness.source_files import read_file

MOST_NOTES_BYTES = 256 << 10
ROOT = Path(__file__).resolve().parents[2]
CPU = Machine().slug


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "rank", help="rebuild leaderboard.md and .html from results/ alone"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "results", metavar="DIR")
    parser.add_argument(
        "--board",
        "--leaderboard",
        type=Path,
        metavar="FILE",
        help="everything into this file (default: leaderboard.md beside results/, a CPU's in results/cpu/;"
        " of other folders in the folder itself)",
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the board is not current"
    )
    _shared.add_json(parser)
    parser.add_argument(
        "--csv", metavar="FILE", help="one line for each row and shape; - for stdout"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when `--check` finds another board than the records give."""
    if not args.results.is_dir():
        raise UsageError(
            f"{args.results}: no folder of records; a board of it would be empty",
            "leave out --results, or name the folder that a run was given",
        )
    if args.json or args.csv:
        return export_boards(args)
    code, told, written = EXIT_OK, set[str](), False
    for place in places(args.results, args.board):
        board, bad, files = publish(args.results, place)
        for line in (str(line) for line in bad):
            if line not in told:
                print(f"left out: {line}", file=sys.stderr)
                told.add(line)
        if not board.boards and not place.documents and not place.board.exists():
            continue  # no empty board beside records of another kind of machine
        if args.check:
            page = place.board.with_suffix(".html")  # carries NOTES.md too; rebuilt, never compared
            code = max(code, *(_check(p, text) for p, text in files.items() if p != page))
            continue
        for path, text in files.items():
            write(path, text)
        written = True
        rows = sum(len(one.rows) for one in board.boards)
        print(f"{', '.join(map(str, files))}: {len(board.boards)} boards, {rows} rows")
    if not written and not args.check:
        print(f"{args.results}: no records, so no board; next: python run.py triton_template")
    return code


def export_boards(args: argparse.Namespace) -> int:
    """--json and --csv: the boards as data, and no file but the one that is named."""
    found, bad = build(args.results)
    for line in bad:
        print(f"left out: {line}", file=sys.stderr)
    if args.json:
        print(json.dumps(export.document(found), allow_nan=False))
    elif args.csv == "-":
        print(export.csv_text(found), end="")
    else:
        write(Path(args.csv), export.csv_text(found))
    return EXIT_OK


@dataclass(frozen=True)
class Place:
    """One board file, whose rows it holds (`cpu`; None: everybody's), and where the sources lie."""

    board: Path
    cpu: bool | None
    root: Path
    documents: bool = False  # whether the documents of `root` quote this board

    @property
    def home(self) -> str:
        """The way from the board to the root, for links: `` or `../../`."""
        folder = self.board.resolve().parent
        root = self.root.resolve()
        depth = len(folder.relative_to(root).parts) if folder.is_relative_to(root) else 0
        return "../" * depth

    def holds(self, head: record.Head) -> bool:
        """Whether this line is shown there."""
        return self.cpu is None or self.cpu == (head.gpu == CPU)


def places(results_dir: Path, board: Path | None) -> list[Place]:
    """Where the rows of `results_dir` are shown; all in `board` if one is named."""
    if board is not None:
        return [Place(board, None, board.parent)]
    committed = results_dir.resolve() == (ROOT / "results").resolve()
    return [
        Place((ROOT if committed else results_dir) / "leaderboard.md", False, ROOT, committed),
        Place(results_dir / CPU / "leaderboard.md", True, ROOT),
    ]


def rebuild(
    results_dir: Path, board: Path | None, gpus: Collection[str]
) -> Iterator[tuple[Path, Leaderboard, list[record.BadLine]]]:
    """Write the boards that `gpus` stand on; tells each file, what it shows and what was left out."""
    for place in places(results_dir, board):
        if place.cpu is not None and not any((gpu == CPU) == place.cpu for gpu in gpus):
            continue
        shown, bad, files = publish(results_dir, replace(place, documents=False))
        for path, text in files.items():
            write(path, text)
        yield place.board, shown, bad


def build(results_dir: Path) -> tuple[Leaderboard, list[record.BadLine]]:
    """The boards that `results_dir` holds, and the lines that had to be left out."""
    board, bad, _ = _read(results_dir, lambda _: True)
    return board, bad


def publish(
    results_dir: Path, place: Place
) -> tuple[Leaderboard, list[record.BadLine], dict[Path, str]]:
    """The same of one place, and every file that shows it: documents, leaderboard.md, its picture, the page."""
    board, bad, heads = _read(results_dir, place.holds)
    drawing = picture.render(board)
    shown = "docs/board.svg" if drawing else ""
    files, wrong = quoted.documents(place.root, board) if place.documents else ({}, [])
    for error in wrong:
        print(f"left as it is: {error.message}", file=sys.stderr)
    notes = _notes(place.root, board, files)
    files[place.board] = markdown.render(board, picture=shown, home=place.home)
    if drawing:
        files[place.board.parent / "docs" / "board.svg"] = drawing
    page_path = place.board.with_suffix(".html")
    files[page_path] = page.render(board, history(heads), notes)
    return board, bad, files


def _read(
    results_dir: Path, holds: Callable[[record.Head], bool]
) -> tuple[Leaderboard, list[record.BadLine], list[record.Head]]:
    heads, bad = record.heads(results_dir)
    heads = [head for head in heads if holds(head)]
    results, worse = _shared.read(newest(heads), heads)
    bad = sorted([*bad, *worse], key=lambda line: (str(line.path), line.number))
    return leaderboard(results, len(bad), _shared.SharedRuns(heads)), bad, heads


def _notes(root: Path, board: Leaderboard, fresh: Mapping[Path, str]) -> dict[str, str]:
    """NOTES.md of every entry whose folder is in this checkout, as `fresh` has it or as it is."""
    found: dict[str, str] = {}
    for row in (row for one in board.boards for row in one.rows):
        for folder in ("submissions", "baselines"):
            base = (root / folder).resolve()
            path = (base / row.entry / "NOTES.md").resolve()
            if path.is_relative_to(base) and path.is_file():
                try:
                    notes = fresh.get(path) or read_file(path, MOST_NOTES_BYTES).decode(
                        errors="replace"
                    )
                    found[row.entry] = quoted.without_marks(notes)
                except SubmissionError:
                    found[row.entry] = f"(more than {MOST_NOTES_BYTES >> 10} KiB, not shown)"
    return found


def write(path: Path, content: str) -> None:
    """Replace the file as a whole: a reader sees the old board or the new one.

    What is no file of its own (a link, a device, a pipe) is written to and stays what it is.
    """
    fresh: Path | None = None
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout, a pipe
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        fresh = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        if fresh is not None:
            fresh.unlink(missing_ok=True)
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
