"""The cells of a grid as a map, in words, lines and markdown: masks and headdims × lengths."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.board.rank import Board, Row
from harness.board.render.text import number, sanitize, times
from harness.board.rivals import Cell
from harness.schema import Case, Kind, Result, Status

MOST_MAPS = 6
SHORT = (("flash_attn_", "fa"), ("sdpa_", ""), ("_backward", ""))
#: Of a terminal: behind, behind or level, ahead, far ahead.
RED, YELLOW, GREEN, STRONG, PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[1;32m", "\x1b[0m"
FAR = 1.05
FASTER, UNTIMED = "faster on official shapes", "no time on hidden shapes"
UNCOMPARED = "hidden shapes not compared"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One row of a grid's board; a field is empty where the suite has no such cell."""

    row: Row
    lengths: tuple[int, ...]
    lines: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]  # (`causal 64`, a field a length)


def maps(board: Board) -> list[HeatMap]:
    """Of the best submissions of a grid; of another board none."""
    return [heat_map(row) for row in (*board.ranked, *board.unranked) if row.grid.cells][:MOST_MAPS]


def heat_map(row: Row) -> HeatMap:
    """Cells of one headdim, mask and type in a line, the masks one below the other."""
    cases = [cell.result.case for cell in row.grid.cells]
    lengths = tuple(sorted({case.seqlen for case in cases}))
    keys = sorted({_key(case) for case in cases}, key=lambda key: (not key[0], *key[1:]))
    fields: dict[tuple[object, ...], list[Cell]] = {}
    for cell in row.grid.cells:
        fields.setdefault((_key(cell.result.case), cell.result.case.seqlen), []).append(cell)
    several = len({key[2] for key in keys}) > 1
    lines = [
        (_name(key, several), tuple(tuple(fields.get((key, n), ())) for n in lengths))
        for key in keys
    ]
    return HeatMap(row, lengths, tuple(lines))


def _key(case: Case) -> tuple[bool, int, str]:
    return (case.causal, case.headdim, case.dtype.value)


def _name(key: tuple[bool, int, str], several: bool) -> str:
    return f"{'causal' if key[0] else 'full'} {key[1]}{f' {key[2]}' if several else ''}"


def library(entry: str) -> str:
    """`flash_attn_3_backward` → `fa3`, `sdpa_cudnn` → `cudnn`."""
    for long, short in SHORT:
        entry = entry.replace(long, short)
    return sanitize(entry, 16)


def length(seqlen: int) -> str:
    """`512`, `16k`."""
    return f"{seqlen // 1024}k" if seqlen % 1024 == 0 else str(seqlen)


def summary(row: Row) -> str:
    """`1.069× [1.066, 1.072] over the best library of each cell in the mean; least …; led in …`."""
    worst, mean = row.grid.worst, row.grid.over_best
    if worst is None:
        return ""
    over = f"{times(mean)} over the best library of each cell in the mean; " if mean else ""
    where = f"{worst.result.config}, {library(worst.library)}"
    led = f"led in {row.grid.led} of {row.grid.of} cells"
    return f"{over}least {worst.ratio.value:.3f}× ({where}); {led}"


def text_lines(found: HeatMap, colour: bool = False) -> list[str]:
    """For a terminal: `causal 64   1.11 cudnn  0.97- fa3 …`; a minus: not led."""
    head = ["", *map(length, found.lengths)]
    plain = [head, *body(found, _plain)]
    shown = [head, *body(found, _painted)] if colour else plain
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
    return [
        "  ".join(s + " " * (w - len(p)) for s, p, w in zip(*both, widths, strict=True)).rstrip()
        for both in zip(shown, plain, strict=True)
    ]


def body(found: HeatMap, say: Callable[[Cell], str]) -> list[list[str]]:
    """Rows of a table below `length` of each column."""
    return [[name, *(" / ".join(map(say, f)) or "–" for f in each)] for name, each in found.lines]


def _plain(cell: Cell) -> str:
    return f"{cell.ratio.value:.2f}{'' if cell.led else '-'} {library(cell.library)}"


def _painted(cell: Cell) -> str:
    value = cell.ratio.value
    paint = STRONG if value >= FAR and cell.led else GREEN if cell.led else YELLOW
    return f"{RED if cell.ratio.high < 1 else paint}{_plain(cell)}{PLAIN}"


def in_markdown(cell: Cell) -> str:
    """Bold: not led."""
    ratio = f"{cell.ratio.value:.2f}×"
    mark = ratio if cell.led else f"**{ratio}**"
    return f"{number(cell.result.tflops, 0)} · {mark} {library(cell.library)}"


# --------------------------------------------------------------------------- hidden shapes


def loss_words(row: Row) -> str:
    """What a row says that leads more on official than on hidden shapes, or has no time there."""
    return "; ".join(filter(None, (_slower(row), untimed(row))))


def loss_mark(row: Row) -> str:
    """The same in a few words."""
    words = loss_words(row)
    return next((mark for mark in (FASTER, UNTIMED, UNCOMPARED) if mark in words), "")


def untimed(row: Row) -> str:
    """Who has no time on a shape, whatever kept it from one, or none to compare, shows no loss."""
    if row.pick.kind is not Kind.SUBMISSION:
        return ""
    said = [(r.config, r.status.value) for r in row.hidden if r.status is not Status.PASSED]
    lone = [d for d in row.unasked if all(r.case.headdim != d for r in row.hidden)]
    said += [(f"headdim {d}", "not asked") for d in lone]
    ends = ", ".join(f"{where} {why}" for where, why in said)
    words = [f"{UNTIMED}, {len(said)} of {len(row.hidden) + len(lone)}: {ends}"] if said else []
    few = ", ".join(str(d) for d in row.unasked if d not in lone)
    why = "not beside two libraries in each of its runs"
    return "; ".join([*words, *([f"{UNCOMPARED} on headdim {few}: {why}"] if few else [])])


def _slower(row: Row) -> str:
    loss = row.loss
    if loss is None or not loss.told or loss.libraries is None:
        return ""
    return (
        f"{FASTER} than on hidden ones by {loss.ratio.value - 1:.0%} "
        f"[{loss.ratio.low - 1:.0%}, {loss.ratio.high - 1:.0%}], beside the same libraries, "
        f"which move by at most {loss.libraries - 1:.0%}"
    ).replace("%", " %")


def hidden_words(result: Result) -> str:
    """`2×37×6932 full: 513 TFLOP/s`, `hidden: unsupported`."""
    case = result.case
    shape = f"{case.batch}×{case.heads}×{case.seqlen} {'causal' if case.causal else 'full'}"
    if result.status is Status.PASSED:
        return f"{shape}: {number(result.tflops, 0)}"
    if result.status is Status.UNSUPPORTED and not result.reason.endswith(")"):  # by its claims
        return "hidden: unsupported"
    return f"{shape}: {result.status.value}"


def as_json(found: HeatMap) -> Mapping[str, object]:
    """What the page draws."""
    return {
        "entry": found.row.entry,
        "summary": summary(found.row),
        "lengths": [length(n) for n in found.lengths],
        "lines": [
            [name, [[_cell_json(cell) for cell in field] for field in fields]]
            for name, fields in found.lines
        ],
    }


def _cell_json(cell: Cell) -> list[object]:
    return [
        *(float(f"{x:.5g}") for x in (cell.ratio.low, cell.ratio.value, cell.ratio.high)),
        library(cell.library),
        float(f"{cell.result.tflops or 0:.4g}"),
    ]
