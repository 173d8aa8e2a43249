"""What several commands need: where things lie, the newest lines, and an entry by its name."""

import argparse
import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from harness.board import record, rivals
from harness.board.rank import HELD, Leaderboard, Row, by_todays_rule, leaderboard, unfit
from harness.board.render.text import sanitize
from harness.board.rivals import direct_on, place
from harness.errors import UnavailableError, UsageError, did_you_mean
from harness.measure import stats
from harness.measure.stats import Interval
from harness.process.project import results
from harness.process.text import shown
from harness.schema import Kind, Result, Status

SHORTEST = 12  # characters that are left of a column at least


def add_results(parser: argparse.ArgumentParser) -> None:
    """--results, --suite and --on: which lines are meant."""
    add = parser.add_argument
    add("--results", type=results, default="", metavar="DIR", help="where records lie")
    add("--suite", metavar="NAME", help="only this suite")
    add("--on", metavar="GPU", help="only GPUs whose name contains this")


def heads(args: argparse.Namespace, *names: str) -> tuple[list[record.Head], list[record.BadLine]]:
    """The lines that --results, --suite and --on let through, and those that are none.

    Of `names` (NAME or NAME@RUN) only what is a row to its end: their fronts may be believed.
    """
    found, bad = record.heads(args.results)
    gpu, asked = (args.on or "").lower(), {name.partition("@")[0] for name in names}
    through = (h for h in found if args.suite in (None, "", h.suite) and gpu in h.gpu.lower())
    return [h for h in through if h.entry not in asked or record.whole([h])], bad


def of_entry(among: Sequence[record.Head], entry: str) -> list[record.Head]:
    """Those of one entry; raises UsageError with the nearest name where there is none."""
    if not (mine := [h for h in among if h.entry == entry]):
        raise unknown(entry, sorted({h.entry for h in among}))
    return mine


def boards(args: argparse.Namespace) -> Leaderboard:
    """The boards as `rank` builds them, cut down to --suite and --on."""
    found, _ = boards_from(*heads(args))
    if not found.boards:
        asked = {"--suite": args.suite, "--on": args.on}
        what = "".join(f" {flag} {value}" for flag, value in asked.items() if value)
        said = f"{args.results}: no results{' for' if what else ''}{what}"
        raise UnavailableError(said, "python run.py --submission triton_template")
    return found


def boards_from(
    heads: Sequence[record.Head], bad: Sequence[record.BadLine] = ()
) -> tuple[Leaderboard, list[record.BadLine]]:
    """The boards of some lines; which had to be left out, beside those that were `bad` before."""
    results, worse = record.read_chosen(heads, record.for_boards)
    left = sorted([*bad, *worse], key=lambda line: (str(line.path), line.number))
    results = anew(results, heads)
    return leaderboard(results, len(left), SharedRuns(heads), Libraries(heads)), left


def read(
    chosen: Iterable[record.Head], among: Iterable[record.Head]
) -> tuple[list[Result], list[record.BadLine]]:
    """The results behind some heads, intervals by today's rule; baselines may be any of `among`."""
    results, bad = record.read(chosen)
    return anew(results, among), bad


def anew(results: Sequence[Result], among: Iterable[record.Head]) -> list[Result]:
    """The same, intervals by today's rule from their samples and those of baselines of `among`."""
    old = (r for r in results if r.speedup and r.speedup.rule != stats.INTERVAL_RULE)
    wanted = {(place(r), r.speedup.against) for r in old if r.speedup}
    bases, _ = record.read(h for h in among if (place(h), h.entry) in wanted)
    found: dict[object, Result] = {(place(base), base.entry): base for base in bases}
    each = ((r, found.get((place(r), r.speedup and r.speedup.against))) for r in results)
    return [by_todays_rule(r, base) for r, base in each]


#: Lines of one row by what names it, of one file; the last is the first asked.
_Copies = dict[str, list[record.Head]]


class SharedRuns:
    """Runs that hold two rows of a board with the sources they stand there with: rank.Beside."""

    def __init__(self, heads: Iterable[record.Head]) -> None:
        self.runs: dict[tuple[object, ...], dict[tuple[str, ...], _Copies]] = {}
        for h in heads:
            if h.status == Status.PASSED.value:
                runs = self.runs.setdefault(record.of_source(h), {})
                runs.setdefault((h.date, h.run, str(h.path)), {}).setdefault(h.config, []).append(h)

    def __call__(self, a: Row, b: Row, configs: Sequence[str]) -> Interval | None:
        """The paired ratio of the newest such run with all `configs`, held no worse than both."""
        least = min(HELD.index(r.held) for row in (a, b) for r in row.results)
        mine, theirs = (self.runs.get(record.of_source(row.pick), {}) for row in (a, b))
        for run in sorted(mine.keys() & theirs.keys(), reverse=True):
            if set(configs) <= mine[run].keys() & theirs[run].keys():
                each = [side[run][config] for config in configs for side in (mine, theirs)]
                found = [record.last(copies) for copies in each]
                paired = stats.geomean_of_all([*map(direct_on, found[::2], found[1::2])])
                if paired and not _held_worse(filter(None, found), least):
                    return paired
        return None


class Libraries(rivals.Libraries):
    """The same of records: read when asked for."""

    def __init__(self, heads: Iterable[record.Head]) -> None:
        super().__init__(())
        self.heads: dict[tuple[object, ...], _Copies] = {}
        self.own: dict[tuple[object, ...], list[record.Head]] = {}
        for h in heads:
            if h.status != Status.PASSED.value:
                continue
            if h.kind == Kind.BASELINE.value:
                self.heads.setdefault(place(h), {}).setdefault(h.entry, []).append(h)
            else:
                self.own.setdefault((*record.of_source(h), h.config), []).append(h)

    def __call__(self, result: Result) -> Sequence[Result]:
        """Those of its run."""
        return self._all(place(result))

    def newest(self, result: Result) -> Iterable[tuple[Result, Result]]:
        """Each in the newest run that timed it beside this source: the source's row there, its."""
        runs = self.own.get((*record.of_source(result), result.config), ())
        found: dict[str, tuple[Result, Result]] = {}
        least, here = HELD.index(result.held), (place(result), result.date)
        for h in sorted(runs, key=lambda h: (h.date, h.run, place(h) == here[0]), reverse=True):
            if not self.heads.get(place(h), {}).keys() - found.keys():
                continue
            rows = [result] if (place(h), h.date) == here else record.read([h])[0]
            for mine, other in itertools.product(rows, self._all(place(h))):
                alone = mine.speedup is None and result.speedup is not None
                if mine is result or not (alone or _held_worse((mine, other), least)):
                    found.setdefault(other.entry, (mine, other))
        return found.values()

    def _all(self, key: tuple[object, ...]) -> Sequence[Result]:
        if key not in self.found:
            self.found[key] = [*filter(None, map(record.last, self.heads.get(key, {}).values()))]
        return self.found[key]


def _held_worse(results: Iterable[Result], least: int) -> bool:
    """Whether one of them is compared with no other, or held less well than HELD[least]."""
    return any(unfit(r) or HELD.index(r.held) < least for r in results)


def begun(which: str, names: Iterable[str]) -> set[str]:
    """`which` itself where it is one of `names`, else those that it begins."""
    known = set(names)
    return {which} if which in known else {name for name in known if name.startswith(which)}


def unknown(entry: str, known: Iterable[str]) -> UsageError:
    """No such entry, and the nearest one."""
    names = list(known)
    hint = "python run.py list; or another --results, --suite or --on: no record passes these"
    if names:
        some = shown(", ".join(names), 600)  # a lab has thousands
        hint = did_you_mean(entry, names) or f"entries with results: {some}"
    return UsageError(f"'{entry}': no results under that name", hint)


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json: one document on stdout and nothing else."""
    parser.add_argument("--json", action="store_true", help="one JSON document")


def columns() -> int:
    """How wide a line may be: the terminal's, or no limit where none reads."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


def table(
    rows: Sequence[Sequence[str]], indent: str = "", cut: Sequence[int] = (), most: int = 0
) -> str:
    """Columns, left-aligned but for figures; the first row is the head.

    Beyond the terminal's width (or `most`) the columns of `cut` get shorter, each to its end before
    the next; where that is not enough every row is a paragraph of its own.
    """
    rows = [[sanitize(cell) for cell in row] for row in rows]
    most = (most or columns()) - len(indent)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for at in cut:
        over = sum(widths) + 2 * (len(widths) - 1) - most
        widths[at] = max(widths[at] - max(over, 0), min(widths[at], SHORTEST))
    if sum(widths) + 2 * (len(widths) - 1) > most:
        return "\n".join(_paragraph(rows[0], row, indent, most) for row in rows[1:])
    lines = []
    for row in rows:
        cells = []
        for cell, width in zip(row, widths, strict=True):
            fit = cell if len(cell) <= width else cell[: width - 1] + "…"
            cells.append(fit.rjust(width) if fit[:1].isdigit() else fit.ljust(width))
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def _paragraph(head: Sequence[str], row: Sequence[str], indent: str, most: int) -> str:
    named = zip(head, row, strict=True)
    cells = [f"{indent}  {name + ': ' if name else ''}{cell}" for name, cell in named if cell]
    lines = [indent + row[0], *cells[1:]]
    fill = textwrap.TextWrapper(most + len(indent), subsequent_indent=f"{indent}    ")
    return "\n".join(line for each in lines for line in fill.wrap(each))
