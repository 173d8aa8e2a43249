"""leaderboard.md, its pictures, the page and what documents quote, from the records alone.

leaderboard.md is made of the GPUs under results/, which are committed. A try-out on a CPU is ranked
by nobody and committed by nobody: it has a board of its own beside its records,
results/cpu/leaderboard.md, which git ignores. Records elsewhere (--results DIR) have their boards
there: the committed one stays as it is. A board that is named with --board holds everything.
"""

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.board import query, quoted, record
from harness.board.history import history
from harness.board.rank import Leaderboard, Row
from harness.board.render import markdown, page, picture
from harness.catalog.source_files import read_file
from harness.errors import StorageError, SubmissionError
from harness.process.project import base, is_project, layers
from harness.process.sandbox.folders import is_own
from harness.process.text import plain_text
from harness.schema import Kind, Machine

MOST_NOTES_BYTES = 256 << 10
CPU = Machine().slug


@dataclass(frozen=True)
class BoardFile:
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
        return "../" * (len(folder.relative_to(root).parts) if folder.is_relative_to(root) else 0)

    def top_of(self, path: Path) -> Path | None:
        """Of a file of this board, the folder that holds all; None for what a person named."""
        top = self.board.parent.parent if self.cpu else self.board.parent
        return None if self.cpu is None and path == self.board else top

    def holds(self, head: record.Head) -> bool:
        """Whether this line is shown there."""
        return self.cpu is None or self.cpu == (head.gpu == CPU)


def places(results_dir: Path, board: Path | None) -> list[BoardFile]:
    """Where the rows of `results_dir` are shown; all in `board` if one is named."""
    if board is not None:
        return [BoardFile(board, None, board.parent)]
    root = base()
    committed = results_dir.resolve() == (root / "results").resolve()
    return [
        BoardFile((root if committed else results_dir) / "leaderboard.md", False, root, committed),
        BoardFile(results_dir / CPU / "leaderboard.md", True, root),
    ]


def rebuild(
    results_dir: Path, board: Path | None, gpus: Collection[str]
) -> Iterator[tuple[Path, Leaderboard, list[record.BadLine]]]:
    """Write the boards that `gpus` stand on; tells each file, what it shows and leaves out."""
    for place in places(results_dir, board):
        if place.cpu is not None and not any((gpu == CPU) == place.cpu for gpu in gpus):
            continue
        shown, bad, files = publish(results_dir, replace(place, documents=False))
        for path, text in files.items():
            write(path, text, place.top_of(path))
        yield place.board, shown, bad


def publish(
    results_dir: Path, place: BoardFile
) -> tuple[Leaderboard, list[record.BadLine], dict[Path, str]]:
    """The boards of one place, lines left out, all that shows them: documents, pictures, page."""
    lines, bad = record.heads(results_dir)
    heads = [head for head in lines if place.holds(head)]
    board, bad = query.boards_from(heads, bad)
    drawn = picture.pictures(board)
    files, wrong = quoted.documents(place.root, board) if place.documents else ({}, [])
    for error in wrong:
        print(plain_text(f"left as it is: {error.message}"), file=sys.stderr)
    notes = _notes(place.root, board, files)
    shown = {i: f"docs/{name}" for i, (name, _) in drawn.items()}
    alone = is_project(place.root) and not os.path.isfile(place.root / "run.py")  # no checkout
    files[place.board] = markdown.render(board, shown, None if alone else place.home)
    files |= {place.board.parent / "docs" / name: drawing for name, drawing in drawn.values()}
    links = _links(results_dir, place, board, heads)
    files[place.board.with_suffix(".html")] = page.render(board, history(heads), notes, links)
    if alone:
        files[place.board] = files[place.board].replace("python run.py", "attnboard")
    return board, bad, files


def _links(
    results_dir: Path, place: BoardFile, board: Leaderboard, heads: Sequence[record.Head]
) -> page.Files:
    """What the page can link to: nothing outside the checkout and the page's own folders."""
    paths = (place.board.parent, place.root, results_dir)
    folder, root, results = (path.resolve() for path in paths)
    inside = folder.is_relative_to(root) and os.path.isfile(root / "README.md")
    near = results.is_relative_to(folder) or folder.is_relative_to(results)
    rows = {row.entry: row for one in board.boards for row in one.rows} if inside else {}
    sources = {entry: _source(root, row) for entry, row in sorted(rows.items())}
    return page.Files(
        text=place.board.name,
        results=f"{os.path.relpath(results, folder)}/" if near else None,
        home=place.home if inside else None,
        docs=os.path.isfile(root / "docs" / "how-to-read-the-board.md"),
        folders={entry: path for entry, path in sources.items() if path},
        records={h.path: h.path.relative_to(results_dir).as_posix() for h in heads},
    )


def _home(root: Path, row: Row) -> Path:
    """The folder of `root` in which it lies."""
    return root / ("baselines" if row.pick.kind is Kind.BASELINE else "submissions")


def _only(base: Path, entry: str) -> Path | None:
    """The folder or bare file that it is, where one is there: of two, one is not the entry."""
    bare = [base / f"{entry}{suffix}" for suffix in (".cu", ".py")]
    found = [*filter(os.path.lexists, bare), *filter(os.path.isdir, [base / entry])]
    return found[0] if len(found) == 1 else None


def _source(root: Path, row: Row) -> str:
    """Where an entry's source lies in the checkout, or an empty string."""
    base = _home(root, row).resolve()
    if (path := _only(base, row.entry)) and is_own(path, base):
        return path.relative_to(root.resolve()).as_posix()
    return ""


def _notes(root: Path, board: Leaderboard, fresh: Mapping[Path, str]) -> dict[str, str]:
    """NOTES.md of every entry here, as `fresh` has it or as it is; the root's own count."""
    found: dict[str, str] = {}
    for row in (row for one in board.boards for row in one.rows):
        for home in (folder.resolve() for folder in layers(_home(root, row))[::-1]):
            path = home / row.entry / "NOTES.md"
            if _only(home, row.entry) != path.parent:
                continue
            if is_own(path, home) and os.path.isfile(path):  # no folder that is shut
                asked = path, MOST_NOTES_BYTES, SubmissionError, path.parent
                try:
                    notes = fresh.get(path, "").encode() or read_file(*asked, links=False)
                    found[row.entry] = quoted.without_marks(notes.decode(errors="replace"))
                except SubmissionError:
                    found[row.entry] = f"(over {MOST_NOTES_BYTES >> 10} KiB or unreadable)"
    return found


def write(path: Path, content: str, top: Path | None = None) -> None:
    """Replace the file as a whole: a reader sees the old board or the new one.

    Below `top` no link is followed, and whatever lies at `path` is replaced. Without one a person
    named `path`: if it is a link, a device or a pipe, it is written to and stays what it is.
    """
    fresh: Path | None = None
    try:
        if top and not is_own(path.parent, top):
            raise OSError(errno.ELOOP, f"a link leads there from {top}")
        if not top and (path.is_symlink() or (path.exists() and not os.path.isfile(path))):
            path.write_text(content, encoding="utf-8", newline="\n")
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
            with contextlib.suppress(OSError):
                fresh.unlink()
        said = f"{path}: cannot write the board: {error.strerror or error}"
        hint = "free space or permissions there, then `python run.py rank`; the records are safe"
        raise StorageError(said, hint) from error
