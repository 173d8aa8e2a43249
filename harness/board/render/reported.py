"""Figures other people report, each with its source. Told beside the board, never ranked on it.

They were measured on other machines, under other protocols, by their authors. A figure belongs to a
pass (forward or backward) and a shape, and stands only beside a config that asks exactly that.
Those of the FlashAttention-3 paper are of configs/published/: `papercheck` compares them cell by
cell, so a grid's board repeats none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from harness.board.rank import Board
from harness.catalog.published import called
from harness.process.project import HOME
from harness.schema import Case, Result

FA3_FIGURE = "FlashAttention-3 paper (Shah et al., 2024), forward causal fp16 figure, H100 SXM5"
MLS_TABLE = "MLS-Bench task mlsys-fused-attention, results table, H100 SXM5"
FORWARD = "attention_forward"


def _paper(name: str, seqlen: int, headdim: int) -> Case:
    """A shape of the FlashAttention-3 paper: 16,384 tokens, hidden size 2048, causal fp16."""
    batch, heads = 16_384 // seqlen, 2048 // headdim
    return Case(name=name, batch=batch, heads=heads, seqlen=seqlen, headdim=headdim)


HDIM64 = _paper("hdim64_seq4k", 4096, 64)
HDIM128 = _paper("hdim128_seq8k", 8192, 128)
HDIM256 = _paper("hdim256_seq16k", 16_384, 256)


@dataclass(frozen=True, slots=True)
class Reported:
    """TFLOP/s of one kernel as told by `source`, on shapes of one problem."""

    name: str
    problem: str
    tflops: Mapping[Case, float]
    source: str

    def on(self, problem: str, case: Case) -> float | None:
        """TFLOP/s on this shape of this problem, whatever its config's name; None if not told."""
        told = (figure for known, figure in self.tflops.items() if known.question == case.question)
        return next(told, None) if problem == self.problem else None


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure on a shape that no suite asks, or that is not wholly told."""

    what: str
    problem: str
    figure: str
    setting: str
    source: str


OTHER_TABLES = (
    Reported("flash_v3", FORWARD, {HDIM64: 335.807, HDIM128: 400.267, HDIM256: 233.150}, MLS_TABLE),
    Reported("flash_v2", FORWARD, {HDIM64: 304.694, HDIM128: 198.261, HDIM256: 233.375}, MLS_TABLE),
    Reported("flash_v1", FORWARD, {HDIM64: 273.739, HDIM128: 294.352, HDIM256: 226.816}, MLS_TABLE),
)
OTHER = (
    Claim(
        "FlashAttention-2 CUDA kernel, tiles 64×64",
        FORWARD,
        "2.1 × PyTorch SDPA",
        "A100, seqlen 4096",
        "Mani Pal, system case study, 2026",
    ),
    Claim(
        "the forward of an educational CUDA lab (WMMA)",
        FORWARD,
        "1.31 TFLOP/s, 0.06 × PyTorch SDPA",
        "batch 4, 8 heads, seqlen 4096, headdim 64; GPU not named",
        "its README, 'work in progress'",
    ),
)


@functools.cache
def _of_the_paper() -> tuple[Reported, ...]:
    """What figure 5 of the FlashAttention-3 paper says, a kernel each."""
    told = called("fa3_paper", HOME / "configs")
    return tuple(
        Reported(name, FORWARD, {case: round(figure) for case, figure in each.items()}, FA3_FIGURE)
        for name, each in told.items()
    )


def beside(board: Board) -> list[tuple[Reported, dict[str, float]]]:
    """Who reports something on a config of this board, and config → TFLOP/s."""
    if board.is_grid:
        return []
    asked: dict[str, Result] = {r.config: r for row in board.rows for r in row.results}
    told = []
    for one in (*_of_the_paper(), *OTHER_TABLES):
        figures = {name: one.on(r.problem, r.case) for name, r in asked.items()}
        known = {name: figure for name, figure in figures.items() if figure is not None}
        told += [(one, known)] if known else []
    return told


def claims(board: Board) -> list[Claim]:
    """What else is told of this board's problem."""
    return [claim for claim in OTHER if claim.problem == board.problem and not board.is_grid]
