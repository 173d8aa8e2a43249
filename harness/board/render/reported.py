"""Figures other people report, each with its source. Told beside the board, never ranked on it.

They were measured on other machines, under other protocols, by their authors. A figure belongs to a
pass (forward or backward) and a shape, and stands only beside a config that asks exactly that. They
lie in configs/published/; `papercheck` compares those of the FlashAttention-3 paper cell by cell,
so a grid's board repeats none.
"""

import functools

from harness.board.rank import Board
from harness.catalog.published import Claim, Reported, reported
from harness.process.project import HOME

_all = functools.cache(lambda: reported(HOME / "configs"))


def beside(board: Board) -> list[tuple[Reported, dict[str, float]]]:
    """Who reports something on a config of this board, and config → TFLOP/s."""
    asked = {} if board.is_grid else {r.config: r for row in board.rows for r in row.results}
    found = []
    for one in _all()[0]:
        figures = {name: one.on(r.problem, r.case) for name, r in asked.items()}
        known = {name: figure for name, figure in figures.items() if figure is not None}
        found += [(one, known)] if known else []
    return found


def claims(board: Board) -> list[Claim]:
    """What else is told of this board's problem."""
    return [claim for claim in _all()[1] if claim.problem == board.problem and not board.is_grid]
