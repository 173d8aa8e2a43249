"""The picture of a grid: a map of cells for each of the best submissions, as an SVG of a few KB."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from harness.board.rank import Board
from harness.board.render.heat_map import HeatMap, length, library, maps, summary
from harness.board.render.text import board_title, number, sanitize
from harness.board.rivals import Cell

WIDTH, TOP, HEAD, LINE, GAP = 960, 78, 52, 38, 26
NAMES_END, RIGHT = 130, 940
DEEPEST = 0.25  # of a ratio's logarithm: there the colour is full
MOST_MAPS = 3
STYLE = """
.page{fill:#fff}.ink{fill:#1b1f24}.soft{fill:#59636e}.ahead{fill:#1a7f37}.behind{fill:#cf222e}
.level{fill:#9a6700}
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif}.title{font-size:17px;font-weight:600}
.small{font-size:11.5px}.num{font-variant-numeric:tabular-nums}.name{font-weight:600}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}
.ahead{fill:#3fb950}.behind{fill:#f85149}.level{fill:#d29922}}
"""


def svg(board: Board) -> str:
    """The whole file; the same bytes for the same board."""
    drawn = maps(board)[:MOST_MAPS]
    parts, y = list[str](), float(TOP)
    for one in drawn:
        parts += _map(one, y)
        y += HEAD + LINE * len(one.lines) + GAP
    title = f"{board_title(board)}: each cell beside the best library of its run"
    told = (
        "time of the library / time of the entry; green: not slower, beyond doubt; red: slower, "
        "beyond doubt; below: TFLOP/s and the library"
    )
    return sheet(y, title, told, STYLE, parts)


def sheet(height: float, title: str, told: str, style: str, parts: Iterable[str]) -> str:
    """A whole file: the page, its title, a line on what is drawn, and `parts` below."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'role="img" aria-label="{escape(title)}"><style>{style}</style>',
            f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="8"/>',
            text_at(20, 32, title, "ink title"),
            text_at(20, 54, told, "soft small"),
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
