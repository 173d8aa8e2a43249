"""The pictures of leaderboard.md as SVGs of a few KB: ranked entries of a board, cells of a grid.

Each carries its own colours for light and dark pages and the same bytes for the same board.
"""

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from harness.board.rank import Board, Leaderboard, Row
from harness.board.render.heat_map import HeatMap, length, library, maps, summary
from harness.board.render.text import board_title, number, rank_text, sanitize
from harness.board.rivals import Cell
from harness.measure.stats import Interval
from harness.problems import PROBLEMS
from harness.schema import Kind

WIDTH, TOP, HEAD, LINE, GAP = 960, 78, 52, 38, 26
NAMES_END, RIGHT = 130, 940
DEEPEST = 0.25  # of a ratio's logarithm: there the colour is full
MOST_MAPS = 3
GRID_STYLE = """
.page{fill:#fff}.ink{fill:#1b1f24}.soft{fill:#59636e}.ahead{fill:#1a7f37}.behind{fill:#cf222e}
.level{fill:#9a6700}
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif}.title{font-size:17px;font-weight:600}
.small{font-size:11.5px}.num{font-variant-numeric:tabular-nums}.name{font-weight:600}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}
.ahead{fill:#3fb950}.behind{fill:#f85149}.level{fill:#d29922}}
"""


def _grid_svg(board: Board) -> str:
    """The whole file; the same bytes for the same board."""
    parts, y = list[str](), float(TOP)
    for one in maps(board)[:MOST_MAPS]:
        parts += _map(one, y)
        y += HEAD + LINE * len(one.lines) + GAP
    title = f"{board_title(board)}: each cell beside its best library"
    subtitle = (
        "time of the library / time of the entry; green: not slower, beyond doubt; red: slower, "
        "beyond doubt; below: TFLOP/s and the library"
    )
    return sheet(y, title, subtitle, GRID_STYLE, parts)


def sheet(height: float, title: str, subtitle: str, style: str, parts: Iterable[str]) -> str:
    """A whole file: the page, its title, a line on what is drawn, and `parts` below."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'role="img" aria-label="{escape(title)}"><style>{style}</style>',
            f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="8"/>',
            text_at(20, 32, title, "ink title"),
            text_at(20, 54, subtitle, "soft small"),
            *parts,
            "</svg>\n",
        ]
    )


def _map(one: HeatMap, y: float) -> list[str]:
    step = (RIGHT - NAMES_END) / len(one.lengths)
    parts = [
        text_at(20, y + 14, sanitize(one.row.entry, 40), "ink name"),
        text_at(20, y + 31, summary(one.row), "soft small"),
    ]
    for i, seqlen in enumerate(one.lengths):
        x = NAMES_END + step * (i + 0.5)
        parts.append(text_at(x, y + HEAD - 5, length(seqlen), "soft small num", "middle"))
    for n, (name, fields) in enumerate(one.lines):
        top = y + HEAD + LINE * n
        parts.append(text_at(NAMES_END - 12, top + LINE / 2 + 4, name, "ink", "end"))
        for i, field in enumerate(fields):
            for cell in field[:1]:
                parts += _cell(cell, NAMES_END + step * i, top, step)
    return parts


def _cell(cell: Cell, x: float, y: float, wide: float) -> list[str]:
    ratio, middle = cell.ratio, x + wide / 2
    kind = "ahead" if cell.led else "behind" if ratio.high < 1 else "level"
    deep = 0.12 + 0.6 * min(1.0, abs(math.log(ratio.value)) / DEEPEST)
    below = f"{number(cell.result.tflops, 0)} · {library(cell.library)}"
    return [
        f'<rect class="{kind}" x="{x + 1:.1f}" y="{y + 1:.1f}" width="{wide - 2:.1f}" '
        f'height="{LINE - 2}" rx="4" fill-opacity="{deep:.2f}"/>',
        text_at(middle, y + 17, f"{ratio.value:.2f}×", "ink num", "middle"),
        text_at(middle, y + 31, below, "ink small num", "middle"),
    ]


def text_at(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    """`text` in the classes `kind` of the style."""
    where = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text class="{kind}" {where} text-anchor="{anchor}">{escape(text)}</text>'


ROW, BOTTOM = 30, 46
NAMES_START, PLOT_END, RATIO_END = 56, 570, 628
FIGURES_START, FIGURES_END = 720, 940
LETTER_PX, MOST_LETTERS = 7.2, 40  # of a name
MOST_ROWS = 24
SPAN = 3.0  # from edge to edge; who is slower stands at the left one behind an arrow
THINNEST_PX = 1.5  # of an interval
TICK_PX, MOST_TICKS = 44, 7  # no closer than that: a tick's label is some 30 wide
STYLE = """
.page{fill:#fff}.ink{fill:#1b1f24}.soft{fill:#59636e}.line{stroke:#d1d9e0}.one{stroke:#59636e}
.submission{fill:#0b62d6;stroke:#0b62d6}.baseline{fill:#7a828c;stroke:#7a828c}
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif}.title{font-size:17px;font-weight:600}
.small{font-size:11.5px}.num{font-variant-numeric:tabular-nums}.band{fill:#f6f8fa}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}
.line{stroke:#3d444d}.one{stroke:#9198a1}.submission{fill:#58a6ff;stroke:#58a6ff}
.baseline{fill:#8b949e;stroke:#8b949e}.band{fill:#151b23}}
"""


def pictures(leaderboard: Leaderboard) -> dict[int, tuple[str, str]]:
    """Index of a board → (file name, SVG): the main one, and the newest of each official suite.

    All are of the same GPU. A board that ranks nobody has none; the page draws every board.
    """
    main, files = leaderboard.main, dict[int, tuple[str, str]]()
    official = {problem.suites[0] for problem in PROBLEMS.values()}
    for i, board in enumerate(leaderboard.boards):
        if main is None or board.gpu != main.gpu or not (board.exact or maps(board)):
            continue
        name = f"board-{re.sub(r'[^A-Za-z0-9_.-]', '_', board.suite)}.svg"
        if board is main:
            name = "board.svg"
        elif board.suite not in official - {main.suite} or name in dict(files.values()):
            continue
        files[i] = (name, _grid_svg(board) if board.is_grid else _svg(board))
    return files


def _svg(board: Board) -> str:
    rows = board.exact[:MOST_ROWS]
    height = TOP + ROW * len(rows) + BOTTOM
    names = [sanitize(row.entry, MOST_LETTERS) for row in rows]
    start = NAMES_START + LETTER_PX * max(map(len, names)) + 14
    ratios = [row.speedup for row in rows if row.speedup]
    singles = [r.speedup.value for row in rows for r in row.results if r.speedup]
    axis = Axis([*ratios, *(Interval(ratio, ratio, ratio) for ratio in singles)], start)
    title = f"{board_title(board)}: speed-up over {board.headline}"
    subtitle = (
        "bar: geometric mean with its 95 % interval; thin line: from the slowest to the fastest "
        "config; = marks ties"
    )
    drawn = (part for i, row in enumerate(rows) for part in _row(board, row, i, axis))
    return sheet(height, title, subtitle, STYLE, [*_heads(board), *drawn, *_ticks(axis, height)])


class Axis:
    """Speed-up → x, logarithmic, so that twice as fast and half as fast lie equally far from 1."""

    def __init__(self, ratios: Sequence[Interval], start: float = 256) -> None:
        self.start = start  # pixels
        self.high = max([1.0, *(r.high for r in ratios)]) * 1.02
        self.low = max(min([1.0, *(r.low for r in ratios)]) * 0.98, min(self.high / SPAN, 0.9))

    def x(self, ratio: float) -> float:
        """Pixels from the left; what lies beyond an edge stands on it."""
        share = math.log(ratio / self.low) / math.log(self.high / self.low)
        return self.start + min(max(share, 0.0), 1.0) * (PLOT_END - self.start)

    def ticks(self) -> list[float]:
        """Round ratios, the roundest first, as many as their labels have room for; 1 always."""
        decades = [digit * 10.0**power for power in (0, -1, 1, -2) for digit in (1, 2, 5)]
        between = [k / 20 for k in (*range(2, 100, 4), *range(4, 100, 4), *range(1, 100, 2))]
        chosen: list[float] = []
        for tick in (*decades, *between):
            if self.low <= tick <= self.high and len(chosen) < MOST_TICKS:
                room = all(abs(self.x(tick) - self.x(other)) >= TICK_PX for other in chosen)
                chosen += [tick] if room else []
        return sorted(chosen)


def _heads(board: Board) -> list[str]:
    step = (FIGURES_END - FIGURES_START) / len(board.configs)
    parts = [
        text_at(FIGURES_END, 30, "TFLOP/s", "soft small", "end"),
        text_at(RATIO_END + 8, TOP - 11, "speed-up, interval", "soft small", "middle"),
    ]
    for i, config in enumerate(board.configs[:4]):
        x = FIGURES_START + step * (i + 1)
        for line, part in enumerate(sanitize(config, 22).split("_", 1)):
            parts.append(text_at(x, TOP - 26 + 15 * line, part, "soft small", "end"))
    return parts


def _row(board: Board, row: Row, index: int, axis: Axis) -> list[str]:
    y = TOP + ROW * index
    middle = y + ROW / 2
    kind = "baseline" if row.pick.kind is Kind.BASELINE else "submission"
    parts = [f'<rect class="band" x="12" y="{y}" width="{WIDTH - 24}" height="{ROW}"/>'] * (
        index % 2 == 0
    )
    parts += [text_at(44, middle + 4.5, rank_text(row), "soft num", "end")]
    parts += [text_at(NAMES_START, middle + 4.5, sanitize(row.entry, MOST_LETTERS), "ink")]
    if row.speedup:
        parts += _mark(row, row.speedup, axis, middle, kind)
        interval = f"{row.speedup.low:.3f} – {row.speedup.high:.3f}"
        parts += [
            text_at(RATIO_END, middle + 4.5, f"{row.speedup.value:.3f}×", "ink num", "end"),
            text_at(RATIO_END + 8, middle + 4.5, interval, "soft small num"),
        ]
    step = (FIGURES_END - FIGURES_START) / len(board.configs)
    for i, config in enumerate(board.configs[:4]):
        result = row.on(config)
        figure = number(result.tflops if result else None, 0)
        parts += [text_at(FIGURES_START + step * (i + 1), middle + 4.5, figure, "ink num", "end")]
    return parts


def _mark(row: Row, whole: Interval, axis: Axis, y: float, kind: str) -> list[str]:
    """The interval as a bar as wide as it is, and a line over what the single configs gave."""
    if whole.value < axis.low:
        return [text_at(axis.start + 2, y + 4.5, "◂", "soft small")]
    single = [result.speedup.value for result in row.results if result.speedup]
    ends = [axis.x(ratio) for ratio in (min(single, default=1.0), max(single, default=1.0))]
    low, high = axis.x(whole.low), axis.x(whole.high)
    wide = max(high - low, THINNEST_PX)
    left = (low + high - wide) / 2
    return [
        f'<line class="{kind}" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}" '
        'stroke-opacity=".55"/>',
        f'<rect class="{kind}" x="{left:.1f}" y="{y - 8}" width="{wide:.1f}" height="16" '
        'stroke="none"/>',
    ]


def _ticks(axis: Axis, height: int) -> list[str]:
    bottom = height - BOTTOM
    parts = []
    for tick in axis.ticks():
        x = axis.x(tick)
        kind = "one" if tick == 1 else "line"
        dash = "" if tick == 1 else ' stroke-dasharray="2 4"'
        parts += [
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"{dash}/>',
            text_at(x, bottom + 18, f"{tick:g}×", "soft small num", "middle"),
        ]
    for name, kind, x in (("submission", "submission", 20), ("baseline", "baseline", 116)):
        parts += [
            f'<circle class="{kind}" cx="{x + 5}" cy="{bottom + 26}" r="4.5" stroke="none"/>',
            text_at(x + 16, bottom + 30, name, "soft small"),
        ]
    return parts
