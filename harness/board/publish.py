"""leaderboard.md, its pictures, the page and what documents quote, from the records alone.

leaderboard.md is made of the GPUs under results/, which are committed. A try-out on a CPU is ranked
by nobody and committed by nobody: it has a board of its own beside its records,
results/cpu/leaderboard.md, which git ignores. Records elsewhere (--results DIR) have their boards
there: the committed one stays as it is. A board that is named with --board holds everything.
"""

import errno
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.board import query, quoted, record
from harness.board.history import history
from harness.board.rank import Leaderboard
from harness.board.render import markdown, page, picture
from harness.catalog.entrants import ENTRIES
from harness.catalog.source_files import read_file
from harness.errors import StorageError, SubmissionError
from harness.process.project import base, is_project, layers
from harness.process.sandbox.folders import is_own
from harness.process.scratch import replacing
from harness.process.text import plain_text
from harness.schema import Kind, Machine

MOST_NOTES_BYTES = 256 << 10
CPU = Machine().slug
Lie = Mapping[str, tuple[Path, Path]]  # an entry → its home, and its folder or bare file there


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
    lie = _lie(place.root, board)
    notes = _notes(lie, files)
    shown = {i: f"docs/{name}" for i, (name, _) in drawn.items()}
    alone = is_project(place.root) and not os.path.isfile(place.root / "run.py")  # no checkout
    files[place.board] = markdown.render(board, shown, None if alone else place.home)
    files |= {place.board.parent / "docs" / name: drawing for name, drawing in drawn.values()}
    links = _links(results_dir, place, lie, heads)
    files[place.board.with_suffix(".html")] = page.render(board, history(heads), notes, links)
    if alone:
        files[place.board] = files[place.board].replace("python run.py", "attnboard")
    return board, bad, files


def _links(
    results_dir: Path, place: BoardFile, lie: Lie, heads: Sequence[record.Head]
) -> page.Files:
    """What the page can link to: nothing outside the checkout and the page's own folders."""
    paths = (place.board.parent, place.root, results_dir)
    folder, root, results = (path.resolve() for path in paths)
    inside = folder.is_relative_to(root) and os.path.isfile(root / "README.md")
    near = results.is_relative_to(folder) or folder.is_relative_to(results)
    ours = {e: path for e, (_, path) in sorted(lie.items()) if path.is_relative_to(root) and inside}
    return page.Files(
        text=place.board.name,
        results=f"{os.path.relpath(results, folder)}/" if near else None,
        home=place.home if inside else None,
        docs=os.path.isfile(root / "docs" / "how-to-read-the-board.md"),
        folders={entry: path.relative_to(root).as_posix() for entry, path in ours.items()},
        records={h.path: h.path.relative_to(results_dir).as_posix() for h in heads},
    )


def _lie(root: Path, board: Leaderboard) -> dict[str, tuple[Path, Path]]:
    """Of each entry here that alone bears its name: its home, and its folder or bare file there.

    Of two, neither in the project nor among what comes along, is one known to be what was measured.
    """
    found: dict[str, tuple[Path, Path]] = {}
    for row in (row for one in board.boards for row in one.rows):
        base = root / ("baselines" if row.pick.kind is Kind.BASELINE else "submissions")
        homes = [folder.resolve() for folder in layers(base)]
        bear = [(home, home / row.entry) for home in homes if os.path.isdir(home / row.entry)]
        bare = ((home, Path(f"{home / row.entry}{end}")) for home in homes for end in ENTRIES)
        # no link to a file is an entry
        bear += [(home, file) for home, file in bare if os.path.isfile(file) and is_own(file, home)]
        if len(bear) == 1 and is_own(*bear[0][::-1]):
            found[row.entry] = bear[0]
    return found


def _notes(lie: Lie, fresh: Mapping[Path, str]) -> dict[str, str]:
    """NOTES.md of every entry here, as `fresh` has it or as it is."""
    found: dict[str, str] = {}
    for entry, (home, folder) in lie.items():
        path = folder / "NOTES.md"
        if is_own(path, home) and os.path.isfile(path):  # no folder that is shut
            asked = path, MOST_NOTES_BYTES, SubmissionError, folder
            try:
                notes = fresh.get(path, "").encode() or read_file(*asked, links=False)
                found[entry] = quoted.without_marks(notes.decode(errors="replace"))
            except SubmissionError:
                found[entry] = f"(over {MOST_NOTES_BYTES >> 10} KiB or unreadable)"
    return found


def write(path: Path, content: str, top: Path | None = None) -> None:
    """Replace the file as a whole: a reader sees the old board or the new one.

    Below `top` no link is followed, and whatever lies at `path` is replaced. Without one a person
    named `path`: if it is a link, a device or a pipe, it is written to and stays what it is.
    """
    try:
        if top and not is_own(path.parent, top):
            raise OSError(errno.ELOOP, f"a link leads there from {top}")
        if not top and (path.is_symlink() or (path.exists() and not os.path.isfile(path))):
            path.write_text(content, encoding="utf-8", newline="\n")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content.encode())
    except OSError as error:
        said = f"{path}: cannot write the board: {error.strerror or error}"
        hint = "free space or permissions there, then `python run.py rank`; the records are safe"
        raise StorageError(said, hint) from error
