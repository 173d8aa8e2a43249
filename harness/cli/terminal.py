"""The live view of a run: a moving picture in a terminal, plain lines anywhere else.

It hears what happened and prints it; it asks nobody anything. Text that came from a submission is
sanitized before it is printed; names are harmless by their type (schema.Name).
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.board.rank import Board, Leaderboard, Row, interval_of
from harness.board.render.heat_map import loss_words, maps, summary, text_lines
from harness.board.render.notes import lasting_words
from harness.board.render.text import (
    GROUP_WORDS,
    board_title,
    ending,
    error_map,
    milliseconds,
    next_step,
    number,
    printed,
    rank_text,
    sanitize,
    times,
)
from harness.engine.events import Observer, Progress
from harness.errors import typed
from harness.schema import Result, Status

GOOD, BAD, DIM, BUSY = "green", "red", "dim", "cyan"
#: Plain output tells every tenth of the blocks, not each.
PLAIN_STEPS = 10
PRINTED_LINES = 6  # of a submission's own, under its verdict


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`."""
    whole = max(round(seconds), 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


class Terminal(Observer, contextlib.AbstractContextManager["Terminal"]):
    """What a user sees while a run goes on; use it in a `with` block.

    `quiet_stdout`: stdout belongs to a machine-readable document; everything goes to stderr.
    `brief`: verdicts, notes and the board only. `file`: where to print instead (tests).
    """

    def __init__(
        self, *, quiet_stdout: bool = False, brief: bool = False, file: TextIO | None = None
    ) -> None:
        stream = file if file is not None else (sys.stderr if quiet_stdout else sys.stdout)
        self.console = Console(
            file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self.moving = self.console.is_terminal and os.environ.get("TERM") != "dumb" and not brief
        self.brief = brief
        self._live: Live | None = None
        self._stages: dict[str, str] = {}
        self._told: dict[str, int] = {}
        self._printed: dict[str, list[str]] = {}
        self.replay_flags: Mapping[str, str] = {}  # entry → where its source and its row lie

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the moving part away and leave the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    # ----------------------------------------------------------------- what happens

    def stage(self, entry: str, text: str) -> None:
        """`entry` has come to a step: load, build, check, time."""
        text = sanitize(text)
        if self.moving:
            self._stages[entry] = text
            self._show(self._stage_lines())
        elif not self.brief:
            self._print(f"{entry}: {text}")

    def check(self, entry: str, config: str, status: Status, reason: str) -> None:
        """Whether what one entrant answered on one config was right."""
        if self.brief:
            return
        mark, style = ("✓", GOOD) if status is Status.PASSED else ("✗", BAD)
        why = f" ({sanitize(reason)})" if reason else ""
        where = f" {entry} · {config}: "
        self._print(Text.assemble((mark, style), where, (status.value, style), why))

    def block(self, now: Progress) -> None:
        """One more block of a config is in."""
        name, done, total = now.config, now.done, now.total
        if self.moving:
            self._show(Group(self._stage_lines(), self._bar(now)))
            return
        step = done * PLAIN_STEPS // max(total, 1)
        if self.brief or (step == self._told.get(name) and done != total):
            return
        self._told[name] = step
        so_far = "; ".join(f"{who} {times(r)}" for who, r in now.intervals.items())
        left = f"{duration(now.eta_s)} left" if done < total else "done"
        self._print(f"{name}: block {done}/{total}, {left}" + (f"; {so_far}" if so_far else ""))

    def verdict(self, result: Result) -> None:
        """One (entrant, config) has come to its end."""
        line = Text(f"{result.entry} · {result.config}: ")
        if result.status is Status.PASSED:
            line.append("PASSED", style=GOOD)
            line.append(f"  {milliseconds(result.latency_ms)} ms")
            if result.tflops is not None and result.machine.has_gpu:
                line.append(f"  {number(result.tflops, 1)} TFLOP/s")
            if result.speedup and result.speedup.against != result.entry:
                line.append(f"  {times(interval_of(result.speedup))} over {result.speedup.against}")
            if result.numerics_class == "approximate":
                line.append("  approximate", style="yellow")
            if result.sustained:
                line.append(f"\n    lasting: {lasting_words(result)}", style=DIM)
            self._add_printed(line, result)
        else:
            line.append(ending(result), style=BAD)
            self._add_printed(line, result)
            for drawn in error_map(result.mismatch) if result.mismatch else ():
                line.append(f"\n    {drawn}", style=DIM)
            step = next_step(result, self.replay_flags.get(result.entry, ""))
            line.append(f"\n  next: {typed(step)}", style=DIM)
        self._print(line)

    def _add_printed(self, line: Text, result: Result) -> None:
        """The last that it printed, unless it stands there already."""
        if (lines := printed(result.log_tail, PRINTED_LINES)) == self._printed.get(result.entry):
            return
        self._printed[result.entry] = lines
        for said in lines:
            line.append(f"\n    {said}", style=DIM)

    def board(self, leaderboard: Leaderboard, path: Path) -> None:
        """The boards as they stand now, and where they are written."""
        self.close()
        for board in leaderboard.boards:
            self.console.print(self._table(board) if self.moving else _plain_board(board))
            for line in _grid_lines(board, colour=self.moving):
                self.console.print(Text.from_ansi(line), soft_wrap=True)
        self._print(f"board: {path} · page: {path.with_suffix('.html').name} beside it")

    def note(self, text: str) -> None:
        """A line for the reader."""
        self._print(Text(sanitize(text), style=DIM if self.moving else ""))

    # ----------------------------------------------------------------- how it looks

    def _print(self, line: str | Text) -> None:
        self.console.print(line)
        if not self.moving:
            self.console.file.flush()

    def _show(self, picture: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        self._live.update(picture)

    def _stage_lines(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, text in self._stages.items():
            table.add_row(Text(name, style="bold"), Text(text, style=DIM))
        return table

    def _bar(self, now: Progress) -> RenderableType:
        head, name = Table.grid(padding=(0, 2)), Text(now.config, style="bold")
        bar = ProgressBar(max(now.total, 1), now.done, width=32, complete_style=BUSY)
        head.add_row(name, bar, f"{now.done}/{now.total}", f"{duration(now.eta_s)} left")
        rows = Table.grid(padding=(0, 2))
        for who, ratio in now.intervals.items():
            style = GOOD if ratio.low > 1 else BAD if ratio.high < 1 else ""
            rows.add_row("", who, Text(times(ratio), style=style))
        return Group(head, rows)

    def _table(self, board: Board) -> RenderableType:
        table = Table(title=board_title(board), title_justify="left", header_style="bold")
        for name in ("rank", "entry", "speed-up"):
            table.add_column(name, justify="right" if name == "rank" else "left")
        for config in board.configs if not board.is_grid else ():
            table.add_column(f"{config}\nTFLOP/s", justify="right")
        for row in board.rows:
            style = "bold" if row.rank == 1 else DIM if row.rank is None else ""
            table.add_row(*_cells(board, row), style=style)
        return table


def _cells(board: Board, row: Row) -> list[str]:
    cells = [rank_text(row) + GROUP_WORDS.get(row.group, ""), row.entry]
    cells.append(times(row.speedup) if row.speedup else sanitize(row.why, 60))
    for config in board.configs if not board.is_grid else ():
        result = row.on(config)
        ended = result.status.value if result else "not run"
        cells.append(ended if board.is_cpu else number(result.tflops if result else None, 1))
    return cells


def _plain_board(board: Board) -> str:
    unit = "" if board.is_cpu else " TFLOP/s"
    shown = () if board.is_grid else board.configs
    rows = [["rank", "entry", "speed-up", *(f"{c}{unit}" for c in shown)]]
    rows += [_cells(board, row) for row in board.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([board_title(board), *(line.rstrip() for line in lines)])


def _grid_lines(board: Board, colour: bool) -> list[str]:
    """Maps of the best submissions of a grid; and who is slower off the official shapes."""
    lines: list[str] = []
    for one in maps(board):
        lines += ["", f"{one.row.entry}: {summary(one.row)}", *text_lines(one, colour)]
    for row in board.rows:
        if words := loss_words(row):
            lines += ["", f"{row.entry}: {words}"]
    return lines
