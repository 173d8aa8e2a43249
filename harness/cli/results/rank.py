"""`rank`: rebuild leaderboard.md, pictures, page and quoted figures, from the records alone."""

import argparse
import contextlib
import difflib
import re
import shlex
import sys
from pathlib import Path

from harness.board import export, publish, query, record
from harness.board.render.text import sanitize
from harness.catalog.source_files import home_of, read_file
from harness.catalog.yaml_model import MOST_BYTES
from harness.errors import Exit, StorageError, SubmissionError, UsageError, typed
from harness.process.project import results
from harness.process.sandbox.folders import is_own
from harness.process.text import dumps, plain_text

OWNED = re.compile(rb"^owners:", re.MULTILINE)
MOST_BOARD_BYTES, MOST_COMPARED = 64 << 20, 4000  # of 16,000 lines the differences take 15 s
MOST_SAID = 1 << 16  # characters of a line that names files


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add = parser.add_argument
    add("--results", type=results, default="", metavar="DIR")
    add(
        "--board",
        "--leaderboard",
        type=Path,
        metavar="FILE",
        help="everything into this file (default: leaderboard.md beside results/, a CPU's in "
        "results/cpu/; of other folders in the folder itself)",
    )
    add("--check", action="store_true", help="write nothing; exit 1 if the board is not current")
    query.add_json(parser)
    add("--csv", metavar="FILE", help="one line for each row and shape; - for stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when `--check` finds another board than the records give."""
    if not args.results.is_dir():
        said = f"{args.results}: no folder of records; a board of it would be empty"
        raise UsageError(said, "leave out --results, or name the folder that a run was given")
    for asked in filter(None, (args.board, args.csv if args.csv != "-" else None)):
        if not (folder := Path(asked).parent).exists():
            raise UsageError(f"{asked}: no folder {folder}", f"mkdir -p {shlex.quote(str(folder))}")
    if args.json or args.csv:
        return export_boards(args)
    code, shown, written = 0, set[str](), False
    for place in publish.places(args.results, args.board):
        board, bad, files = publish.publish(args.results, place)
        for line in (str(line) for line in bad):
            if line not in shown:
                print(f"left out: {line}", file=sys.stderr)
                shown.add(line)
        if not board.boards and not place.documents and not place.board.exists():
            continue  # no empty board beside records of another kind of machine
        if args.check:
            page = place.board.with_suffix(".html")  # carries NOTES.md too; rebuilt, never compared
            held = {p: text for p, text in files.items() if p != page and not _of_somebody(p)}
            code = max(code, *(_check(p, place.top_of(p), text) for p, text in held.items()))
            continue
        for path, text in files.items():
            _write(path, text, place)
        written = True
        rows = sum(len(one.rows) for one in board.boards)
        said = f"{', '.join(map(str, files))}: {len(board.boards)} boards, {rows} rows"
        print(sanitize(said, MOST_SAID))
    if not written and not args.check:
        print(f"{args.results}: no records, so no board; next: python run.py triton_template")
    return code


def export_boards(args: argparse.Namespace) -> int:
    """--json and --csv: the boards as data, and no file but the one that is named."""
    found, bad = query.boards_from(*record.heads(args.results))
    for line in bad:
        print(f"left out: {line}", file=sys.stderr)
    if args.json:
        print(dumps(export.document(found)))
    elif args.csv == "-":
        print(export.csv_text(found), end="")
    else:
        publish.write(Path(args.csv), export.csv_text(found))
    return Exit.OK


def _write(path: Path, text: str, place: publish.BoardFile) -> None:
    """What the author of some notes makes of its folder stops nobody's board."""
    try:
        publish.write(path, text, place.top_of(path))
    except StorageError as error:
        if path.name != "NOTES.md":
            raise
        print(plain_text(f"left as it is: {error.message}"), file=sys.stderr)


def _of_somebody(path: Path) -> bool:
    """Notes of an entry that has owners: nobody else can mend their figures."""
    manifest = path.with_name("manifest.yaml")
    if path.name == "NOTES.md":
        with contextlib.suppress(SubmissionError):  # what cannot be read is nobody's
            return bool(OWNED.search(read_file(manifest, MOST_BYTES, within=home_of(path.parent))))
    return False


def _check(path: Path, top: Path | None, rebuilt: str) -> int:
    old = ""
    with contextlib.suppress(SubmissionError):  # no file of its own is replaced
        if top is None or is_own(path, top):
            old = read_file(path, MOST_BOARD_BYTES).decode(errors="replace")
    if old == rebuilt:
        print(sanitize(f"{path}: current", MOST_SAID))
        return Exit.OK
    held, right = (text.splitlines()[:MOST_COMPARED] for text in (old, rebuilt))
    diff = difflib.unified_diff(held, right, "board", "records", n=0)
    for line in list(diff)[:20]:
        print(sanitize(line))
    said = sanitize(f"{path}: not what the records give", MOST_SAID)
    print(f"{said}\n  next: {typed('python run.py rank')}", file=sys.stderr)
    return Exit.SUBMISSION_FAILED
