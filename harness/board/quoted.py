"""Figures of the board in documents: `rank` writes them between two comments, nobody copies them.

    <!-- board fa3: cuda_hopper --> … <!-- end -->

puts TFLOP/s on each config there (591.6 / 776.0 / 801.5). What may be asked behind the suite:

    cuda_hopper                                     TFLOP/s on each config
    cuda_hopper over flash_attn_3                   how many times faster, paired in one run
    table cuda_hopper, flash_attn_3                 a table, one row an entry
    cuda_hopper against flash_attn_3, sdpa_cudnn    a table, one row a rival, with intervals
    cuda_hopper over best                           a list item: beside the best library of each
                                                    config; nothing as long as nobody ran there

A question may take several lines. The board is the one of the newest protocol that has figures of
all who are asked for; of an older one than the newest the answer says so. What is on none, or was
not run side by side, is a dash. Pure but for reading the documents.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path

from harness.board.rank import Beside, Board, Leaderboard, Row, interval_of, unfit
from harness.board.render.markdown import safe, table
from harness.board.render.text import DOUBT, UNHELD, number
from harness.board.rivals import Grid, cell_of, direct_on
from harness.catalog.source_files import read_file
from harness.catalog.steps import folders_with
from harness.catalog.suites import by_sha256, load_suite
from harness.errors import SuiteError, UsageError
from harness.measure import stats
from harness.measure.stats import Interval
from harness.process.project import MARK
from harness.process.sandbox.folders import is_own
from harness.process.sandbox.readable import real
from harness.process.text import shown
from harness.schema import Result

PAGES = ("*.md", ".github/*.md", "docs/*.md")
ENTRIES = ("submissions", "baselines")
MOST_BYTES = 256 << 10  # of notes; longer ones stay as they are
MOST_PAGE_BYTES = 16 << 20
MOST_QUESTIONS, MOST_NAMES = 32, 16  # of one document, of one question
MOST_LEFT = 3  # shapes without a figure that are named
GPU = re.compile(r"^gpu: (.+?) *$", re.MULTILINE)  # in .attnboard
START, END = "<!-- board ", "<!-- end -->"
#: A question and its answer, found in one pass: notes are a stranger's.
ASKED = re.compile(
    rf"{START}\s*(?P<suite>[\w.-]+):\s+(?P<what>[^<>\s][^<>]*?)-->"
    rf"(?P<answer>(?:(?!{START}).)*?){END}",
    re.DOTALL,
)
NAMES = r"[\w./-]+(?:, [\w./-]+)*"
HINT = "see the head of harness/board/quoted.py for the five things that can be asked"
OVER_BEST = re.compile(r"([\w./-]+) over best")


def documents(root: Path, leaderboard: Leaderboard) -> tuple[dict[Path, str], list[UsageError]]:
    """Every document below `root` that quotes the board, as it must read; notes on wrong ones.

    Raises UsageError with file and line for a wrong question in the project's own pages. An entry's
    notes are its author's: a wrong question there leaves them as they are, and stops nobody's
    board. So does what is no text of UTF-8, or leads out of the project. The GPU is the one that
    the file .attnboard names, so that another card's rows change no page.
    """
    mark = root / MARK
    told = read_file(mark, MOST_BYTES, UsageError) if mark.exists() else b""
    if named := GPU.search(told.decode(errors="replace")):
        boards = tuple(board for board in leaderboard.boards if board.gpu == named[1])
        leaderboard = replace(leaderboard, boards=boards)
    found, wrong = {}, []
    notes = [at / "NOTES.md" for each in ENTRIES for at in folders_with(root / each, "NOTES.md")]
    notes = [each for each in notes if is_own(each, root)]  # no link is an entry's
    for path in sorted([*notes, *(root / name for p in PAGES for name in glob(p, root_dir=root))]):
        text, own = "", path.name != "NOTES.md"
        # Where it is written is looked up before it is read: a link may take its place meanwhile.
        place = real(path) if own else real(path.parents[1]) / path.parent.name / path.name
        most, within = (MOST_PAGE_BYTES, root.resolve()) if own else (MOST_BYTES, place.parent)
        try:
            if text := _quoting(place, most, within):
                found[place] = filled(text, leaderboard, path, root / "configs")
        except UsageError as error:
            if own and text:
                raise
            wrong.append(error)
    return found, wrong


def _quoting(path: Path, most_bytes: int, within: Path) -> str:
    """The text of a document that asks something, else an empty one."""
    body = read_file(path, most_bytes, UsageError, within, links=False)
    if START.encode() not in body:
        return ""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{shown(path)}: is not UTF-8", "save it as UTF-8") from None


def filled(text: str, leaderboard: Leaderboard, path: Path, configs: Path = Path()) -> str:
    """`text` with today's figures; raises UsageError with file and line for what cannot be asked.

    `configs`: where a suite that nobody ran yet can be known from.
    """
    parts, done = [], 0
    for asked, found in enumerate(questions(text, path)):
        if asked == MOST_QUESTIONS:
            raise UsageError(f"{shown(path)}: more than {MOST_QUESTIONS} questions", "ask fewer")
        where, suite = _place(text, path, found.start()), found["suite"]
        what = " ".join(found["what"].split())
        if over_best := OVER_BEST.fullmatch(what):
            answer = _over_best(suite, over_best[1], leaderboard, configs, where)
        else:
            answer = _answer(suite, what, leaderboard, where)
        parts += [text[done : found.start("answer")], answer]
        done = found.end("answer")
    return "".join([*parts, text[done:]])


def questions(text: str, path: Path) -> list[re.Match[str]]:
    """The questions of `text` from first to last; raises UsageError at one that is not whole."""
    found = list(ASKED.finditer(text))
    whole = {one.start() for one in found}
    for begun in re.finditer(START, text):
        if begun.start() not in whole:
            where = _place(text, path, begun.start())
            raise UsageError(f"{where}: not '{START}SUITE: QUESTION --> … {END}'", HINT)
    return found


def _place(text: str, path: Path, at: int) -> str:
    return f"{shown(path)}:{text.count(chr(10), 0, at) + 1}"


def without_marks(text: str) -> str:
    """The same for a reader who would see the comments."""
    return ASKED.sub(lambda found: found["answer"], text)


def _answer(suite: str, what: str, leaderboard: Leaderboard, where: str) -> str:
    if not (boards := _boards(suite, leaderboard)):
        known = sorted({board.suite for board in leaderboard.boards})
        raise UsageError(f"{where}: no board of suite '{suite}'", f"there are: {', '.join(known)}")
    if what.count(",") >= MOST_NAMES:
        raise UsageError(f"{where}: more than {MOST_NAMES} entries in one question", "ask twice")
    board = next((b for b in boards if _has_all(b, what)), boards[0])
    older = f"protocol {board.protocol}" if board.protocol < boards[0].protocol else ""
    if asked := re.fullmatch(rf"table ({NAMES})", what):
        return _table(board, asked[1].split(", "), older)
    if asked := re.fullmatch(rf"([\w./-]+) against ({NAMES})", what):
        return _rivals(board, leaderboard.beside, asked[1], asked[2].split(", "), older)
    if asked := re.fullmatch(r"([\w./-]+) over ([\w./-]+)", what):
        ratios = _ratios(board, leaderboard.beside, asked[1], asked[2])
        figures = [number(ratio.value if ratio else None, 3) for ratio in ratios]
        doubts = _doubts(board, asked[1], asked[2])
        told = " / ".join(f + doubt for f, doubt in zip(figures, doubts, strict=True))
        return told + (f" ({older})" if older else "")
    if re.fullmatch(r"[\w./-]+", what):
        return " / ".join(_cells(board, what)) + (f" ({older})" if older else "")
    raise UsageError(f"{where}: '{what}' is nothing that the board can answer", HINT)


def _boards(suite: str, leaderboard: Leaderboard) -> list[Board]:
    """Those of today's `suite` on the GPU that ranks most, newer protocols before older ones."""
    named = [b for b in leaderboard.boards if b.suite == suite and not b.is_cpu]
    of_suite = [b for b in named if b.suite_sha256 in by_sha256()] or named
    first = max(of_suite, key=lambda b: (b.protocol, len(b.ranked)), default=None)
    return [b for b in of_suite if first and b.gpu == first.gpu]


def _over_best(suite: str, entry: str, leaderboard: Leaderboard, configs: Path, where: str) -> str:
    """A list item: `entry` beside the best library of each config; empty where nobody ran it."""
    if Path(suite).suffix:  # a file would be read, and quoted where it is wrong
        raise SuiteError(f"{where}: '{suite}' is no name of a suite", HINT)
    try:
        asked = load_suite(suite, configs)
    except SuiteError as error:
        raise SuiteError(f"{where}: {error.message}", error.hint) from None
    boards = _boards(suite, leaderboard)
    board = next((b for b in boards if _has_all(b, entry)), None)
    row = _row(board, entry) if board else None
    if board is None or row is None:
        return "\n"
    cells = [cell_of(result, leaderboard.libraries) for result in row.results]
    grid = Grid(tuple(cell for cell in cells if cell), len(asked.cases))
    if grid.worst is None:
        return "\n"
    mean = stats.geomean([cell.ratio for cell in grid.cells])
    least, doubt = grid.worst, _doubt(*row.results)
    weakest = f"{least.result.config}, `{least.library}`"
    said = (
        f"{safe(asked.description)}: {mean.value:.3f}{doubt} × the best of "
        f"{_ran_beside(grid, leaderboard)} on each shape, least {least.ratio.value:.3f}{doubt} "
        f"({weakest}), not behind in {grid.led} of {len(grid.cells)}"
    )
    left = {case.name for case in asked.cases} - {cell.result.config for cell in grid.cells}
    named = f" (not `{'`, `'.join(sorted(left))}`)" if len(left) <= MOST_LEFT else ""
    said += f" measured of {grid.of}{named}" if left else ""
    said += f" (protocol {board.protocol})" if board.protocol < boards[0].protocol else ""
    return f"\n- `{entry}`, {said}\n"


def _ran_beside(grid: Grid, leaderboard: Leaderboard) -> str:
    """Who the best is one of: `sdpa_cudnn`, `flash_attn_3` (6 of 7)."""
    each = [r.entry for cell in grid.cells for _, r in leaderboard.libraries.newest(cell.result)]
    counts = {entry: each.count(entry) for entry in sorted(set(each))}
    whole = len(grid.cells)
    told = [f"`{e}`" + (f" ({n} of {whole})" if n < whole else "") for e, n in counts.items()]
    return ", ".join(told)


def _has_all(board: Board, what: str) -> bool:
    """Whether everybody whom a question names has figures on `board`."""
    rows = [_row(board, name) for name in re.sub(r"^table | against | over |, ", " ", what).split()]
    return all(row and any(result.tflops for result in row.results) for row in rows)


def _row(board: Board, entry: str) -> Row | None:
    return next((row for row in board.rows if row.entry == entry), None)


def _cells(board: Board, entry: str) -> list[str]:
    """TFLOP/s of one entry, config by config; with a mark where it was not judged."""
    row = _row(board, entry)
    results = [row.on(config) if row else None for config in board.configs]
    return [number(result.tflops if result else None, 1) + _doubt(result) for result in results]


def _doubts(board: Board, *entries: str) -> list[str]:
    """The mark of what is said of `entries` together, config by config."""
    rows = [row for row in (_row(board, entry) for entry in entries) if row]
    return [_doubt(*(row.on(config) for row in rows)) for config in board.configs]


def _doubt(*results: Result | None) -> str:
    """The mark of a figure that comes of one that was not judged, or that no board ranks."""
    return DOUBT * any(r.tflops and (r.held in UNHELD or unfit(r)) for r in results if r)


def _ratios(board: Board, beside: Beside, entry: str, other: str) -> list[Interval | None]:
    """How many times faster `entry` is than `other` on each config, where one run held both.

    That of their rows, or an older one of the same two sources (`beside`).
    """
    mine, theirs = _row(board, entry), _row(board, other)
    if mine is None:
        return [None] * len(board.configs)

    def on(config: str) -> Interval | None:
        result = mine.on(config)
        paired = direct_on(result, theirs.on(config)) if theirs else None
        told = result.speedup if result else None
        if told and told.against == other:  # its own run's baseline, whatever is newest today
            paired = paired or interval_of(told)
        return paired or (beside(mine, theirs, [config]) if theirs else None)

    return [on(config) for config in board.configs]


def _table(board: Board, entries: Sequence[str], corner: str = "") -> str:
    """TFLOP/s and the score of each entry, in the order asked for."""
    rows = [[f"`{entry}`", *_cells(board, entry), _score(board, entry)] for entry in entries]
    return _markdown([corner, *board.configs, f"× `{board.headline}`"], rows)


def _score(board: Board, entry: str) -> str:
    row = _row(board, entry)
    doubt = _doubt(*row.results) if row else ""
    return number(row.speedup.value, 3) + doubt if row and row.speedup else number(None, 3)


def _rivals(
    board: Board, beside: Beside, entry: str, others: Sequence[str], corner: str = ""
) -> str:
    """One entry's TFLOP/s, then its ratio to each rival with the 95 % interval."""
    rows = [[f"`{entry}`, TFLOP/s", *_cells(board, entry), ""]]
    for other in others:
        doubts = _doubts(board, entry, other)
        ratios = _ratios(board, beside, entry, other)
        whole = stats.geomean_of_all(ratios)
        cells = [
            f"{r.value:.3f}{doubt} [{r.low:.3f}, {r.high:.3f}]" if r else "–"
            for r, doubt in zip(ratios, doubts, strict=True)
        ]
        mean = number(whole.value if whole else None, 3) + max(doubts) * bool(whole)
        rows.append([f"× `{other}` ({' / '.join(_cells(board, other))})", *cells, mean])
    return _markdown([corner, *board.configs, "geomean"], rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"\n\n{table(head, rows, right=set(range(1, len(head))))}\n\n"
