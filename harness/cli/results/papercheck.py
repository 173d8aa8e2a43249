"""`papercheck TABLE`: published figures beside what the records here say of the same shapes.

A table of the same GPU is compared in TFLOP/s, one of another GPU in the ratio of its entries on a
shape: clocks, power and memory differ from GPU to GPU. Beyond the table's tolerance a figure
differs, and what was not the same is told below: GPU, versions, clock, how it was timed.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.board import query, record
from harness.board.rank import unfit
from harness.board.record import newest
from harness.board.render.text import DOUBT, UNHELD, number, sanitize
from harness.board.rivals import direct_on
from harness.catalog.published import Figure, Published, known_tables, load_published
from harness.catalog.suites import load_suite
from harness.errors import Exit, UnavailableError, typed
from harness.measure.stats import Interval
from harness.process.project import base
from harness.process.text import dumps
from harness.schema import Result, Status

#: Who may be asked beside the libraries of a table, by problem: a run needs a submission.
BESIDE = {"attention_forward": "cuda_hopper", "attention_backward": "cuda_hopper_backward"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A published value, TFLOP/s or the ratio of two entries, and the same of the records here."""

    figure: Figure
    over: str  # the other entry of a ratio; empty: TFLOP/s
    published: float
    here: Interval  # of 95 %, where it is paired
    doubt: str = ""

    @property
    def difference_pct(self) -> float:
        """What is here, in percent of what was published, less 100."""
        return 100 * (self.here.value / self.published - 1)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument(
        "table", nargs="?", metavar="TABLE", help="one of configs/published/; without: a list"
    )
    query.add_json(parser)
    query.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """0: all compared agrees, or a list; 1: some differs; 2: no such table; 3: none measured."""
    configs = base() / "configs"
    if args.table is None:
        return _list(args, [load_published(name, configs) for name in known_tables(configs)])
    table, figures = load_published(args.table, configs)
    found = measured(args, table, figures)
    left = [figure for figure in figures if figure not in found]
    if not found:
        none = f"{table.name}: none of its {len(figures)} figures ({table.gpu}) is measured under "
        raise UnavailableError(f"{none}{args.results}", command(left))
    absolute = []
    for figure, result in found.items():
        doubt, tflops = DOUBT if result.held in UNHELD else "", _exactly(result.tflops or 0.0)
        absolute.append(Compared(figure, "", figure.tflops, tflops, doubt))
    ratios = _ratios(table, found)
    judged = [c for c in absolute if found[c.figure].gpu == table.gpu] or ratios
    differing = [c for c in judged if abs(c.difference_pct) > table.tolerance_pct]
    if args.json:
        print(dumps(_document(table, [*absolute, *ratios], judged, left)))
    else:
        _print(table, absolute, ratios, judged)
        print("\n".join(_reasons(table, list(found.values()))))
        if left:
            print(f"not measured here: {len(left)} of {len(figures)} figures")
        step = command(left) if left else f"python run.py show {figures[0].entry}"
        print(f"next: {typed(step)}")
    return Exit.SUBMISSION_FAILED if differing else Exit.OK


def measured(
    args: argparse.Namespace, table: Published, figures: Sequence[Figure]
) -> dict[Figure, Result]:
    """Figure → the newest record of its entry and shape, of the table's GPU if there is one."""
    heads, _ = query.heads(args)
    names = {figure.entry for figure in figures}
    asked = [h for h in heads if h.entry in names and h.gpu != "cpu"]
    results, _ = record.read_chosen(asked, newest)
    held = [r for r in results if r.status is Status.PASSED and not unfit(r)]
    held.sort(key=lambda r: (r.gpu == table.gpu, r.date, r.run))
    best = {(r.entry, r.problem, r.case.question): r for r in held}
    keys = {f: (f.entry, f.problem, f.case.question) for f in figures}
    return {figure: best[key] for figure, key in keys.items() if key in best}


def command(left: Iterable[Figure]) -> str:
    """What measures the figures of the first suite of `left`."""
    figures = list(left)
    suite = load_suite(figures[0].suite, base() / "configs")
    mine = [figure for figure in figures if figure.suite == suite.name]
    entries = dict.fromkeys((*suite.baselines, *(figure.entry for figure in mine)))
    cases = dict.fromkeys(figure.case.name for figure in mine)
    text = f"python run.py --submission {BESIDE[suite.problem]} --suite {suite.name}"
    if len(entries) > len(suite.baselines):
        text += f" --baselines {','.join(entries)}"
    if len(cases) < len(suite.cases):
        text += f" --only '{','.join(cases)}'"
    return text


# --------------------------------------------------------------------------- compare


def _exactly(value: float) -> Interval:
    """A figure without an interval of its own."""
    return Interval(value, value, value)


def _ratios(table: Published, found: dict[Figure, Result]) -> list[Compared]:
    """Every entry over the table's base on a shape; here paired where one run held both."""
    bases = {(f.suite, f.case.name): f for f in found if f.entry in table.over}
    ratios = []
    for figure, result in found.items():
        base_figure = bases.get((figure.suite, figure.case.name))
        if base_figure is None or base_figure == figure:
            continue
        other = found[base_figure]
        if other.gpu != result.gpu or not (result.tflops and other.tflops):
            continue
        here = direct_on(result, other) or _exactly(result.tflops / other.tflops)
        doubt = DOUBT if {result.held, other.held} & UNHELD.keys() else ""
        there = figure.tflops / base_figure.tflops
        ratios.append(Compared(figure, base_figure.entry, there, here, doubt))
    return ratios


# --------------------------------------------------------------------------- print


def _list(args: argparse.Namespace, tables: Sequence[tuple[Published, tuple[Figure, ...]]]) -> int:
    rows = [["table", "measured here", "GPU", "what it holds"]]
    for table, figures in tables:
        found = measured(args, table, figures)
        rows.append([table.name, f"{len(found)} of {len(figures)}", table.gpu, table.title])
    if args.json:
        print(dumps({"tables": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]}))
        return Exit.OK
    print(query.table(rows, cut=(3,)))
    print(f"next: {typed(f'python run.py papercheck {rows[-1][0]}')}")
    return Exit.OK


def _print(
    table: Published,
    absolute: Sequence[Compared],
    ratios: Sequence[Compared],
    judged: Sequence[Compared],
) -> None:
    print(f"{table.name}: {table.title}\n  {table.source}")
    head = ["case", "", "published", "here", "difference", ""]
    for each, digits in ((absolute, 1), (ratios, 3)):
        if each:
            rows = [_row(c, digits, table.tolerance_pct, judged=c in judged) for c in each]
            what = "TFLOP/s" if digits == 1 else "how many times as fast, in one run where [ ]"
            print(f"{what}\n{query.table([head, *rows], indent='  ')}")
    differing = [c.difference_pct for c in judged if abs(c.difference_pct) > table.tolerance_pct]
    said = f"{len(judged) - len(differing)} of {len(judged)} agree within {table.tolerance_pct:g} %"
    if differing:
        ends = dict.fromkeys(f"{end(differing):+.1f}" for end in (min, max))
        said += f"; {len(differing)} {'differ' if len(differing) > 1 else 'differs'} by "
        said += f"{' to '.join(ends)} %"
    print(said if judged else "none can be compared: another GPU, and no two entries on one shape")


def _row(each: Compared, digits: int, tolerance_pct: float, *, judged: bool) -> list[str]:
    verdict = "agrees" if abs(each.difference_pct) <= tolerance_pct else "differs"
    ratio = each.here
    here = number(ratio.value, digits) + each.doubt
    if ratio.low < ratio.high:
        here += f" [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"
    return [
        each.figure.case.name,
        each.figure.entry + (f" / {each.over}" if each.over else ""),
        number(each.published, digits),
        here,
        f"{each.difference_pct:+.1f} %",
        verdict if judged else "–" if each.over else "another GPU",
    ]


def _reasons(table: Published, results: Sequence[Result]) -> list[str]:
    """What was not the same there and here."""
    gpus = sorted({sanitize(result.gpu, 60) for result in results})
    told = {r.version for r in results if r.version} | {f"torch {r.machine.torch}" for r in results}
    versions = sorted(sanitize(version, 60) for version in told)
    clocks = [r.clock_mhz for r in results if r.clock_mhz]
    return [
        "what was not the same",
        f"  GPU: there {table.gpu}, here {', '.join(gpus)}",
        f"  version: there {table.version}; here {', '.join(versions)}",
        f"  clock: there not told; here {_span(f'{clock:.0f} MHz' for clock in clocks)}",
        f"  FLOPs: there {table.flops}; here docs/arguments.md",
        *(f"  {line}" for line in table.differs),
        f"  measured here {_span(result.date[:10] for result in results)}",
    ]


def _span(values: Iterable[str]) -> str:
    """`first to last` in order, one of them where they are equal."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1]))) if ordered else "not recorded"


def _document(
    table: Published, each: Sequence[Compared], judged: Sequence[Compared], left: Sequence[Figure]
) -> dict[str, object]:
    """What --json prints."""
    return {
        **table.model_dump(mode="json", exclude={"series"}),
        "compared": [
            {
                "suite": c.figure.suite,
                "case": c.figure.case.name,
                "entry": c.figure.entry,
                "over": c.over or None,
                "published": c.published,
                "here": c.here.value,
                "low": c.here.low,
                "high": c.here.high,
                "difference_pct": c.difference_pct,
                "agrees": abs(c.difference_pct) <= table.tolerance_pct if c in judged else None,
            }
            for c in each
        ],
        "missing": [[figure.suite, figure.case.name, figure.entry] for figure in left],
    }
