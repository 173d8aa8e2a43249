"""The boards as data: one JSON document, or CSV with a line for every row and shape."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from harness.board.rank import Board, Leaderboard, Row
from harness.board.render.heat_map import untimed
from harness.board.render.notes import lasting
from harness.board.render.text import sanitize
from harness.schema import Result

MOST_CELL = 4000  # characters
#: How it begins for a spreadsheet; some take signs of full width, too.
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
COLUMNS = (
    *("gpu", "suite", "suite_sha256", "protocol", "group", "rank", "tie", "entry", "kind"),
    *("language", "author", "speedup", "speedup_low", "speedup_high", "against", "config"),
    *("status", "reason", "latency_ms", "p10_ms", "p90_ms", "tflops", "peak_pct", "max_diff"),
    *("lasting_ms", "lasting_tflops", "lasting_mhz", "lasting_w", "pj_per_flop"),
    *("blocks", "integrity", "date", "run", "source_sha256"),
)
OF_A_RESULT = (
    *("config", "status", "reason", "latency_ms", "p10_ms", "p90_ms", "tflops", "peak_pct"),
    *("max_diff", "blocks", "integrity", "date", "run", "source_sha256"),
)


def document(found: Leaderboard) -> dict[str, object]:
    """Every board with its rows, every row with its results; no number is rounded."""
    boards = []
    for board in found.boards:
        rows = [
            {**_of_row(row), "why": row.why, "results": list(_each(row.results))}
            | _beside_libraries(row)
            for row in board.rows
        ]
        boards.append({**of_board(board), "configs": list(board.configs), "rows": rows})
    return {"boards": boards, "lines_left_out": found.bad_lines}


def _beside_libraries(row: Row) -> dict[str, object]:
    """Cells of a grid beside the best library of each, and what hidden shapes gave."""
    mean, worst, loss = row.grid.over_best, row.grid.worst, row.loss
    best = {
        "over_best": asdict(mean) if mean else None,
        "least": {"config": worst.result.config, **asdict(worst.ratio)} if worst else None,
        "led": row.grid.led,
        "cells": [
            {"config": c.result.config, "library": c.library, "led": c.led, **asdict(c.ratio)}
            for c in row.grid.cells
        ],
    }
    hidden = {
        "results": [
            fields | {"shape": r.case.model_dump(mode="json")}
            for fields, r in zip(_each(row.hidden), row.hidden, strict=True)
        ],
        "official_over_hidden": asdict(loss.ratio) if loss else None,
        "libraries_move_by": loss.libraries if loss else None,
        "told": bool(loss and loss.told),
        "untimed": untimed(row),
    }
    told = {"best_library": best} if row.grid.cells else {}
    return told | ({"hidden": hidden} if row.hidden or hidden["untimed"] else {})


def csv_text(found: Leaderboard) -> str:
    """A head, then one line for each result on a board; what is not known is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for board in found.boards:
        for row in board.rows:
            shared = of_board(board) | _of_row(row)
            for result in _each(row.results):
                writer.writerow({name: _cell(value) for name, value in (shared | result).items()})
    return out.getvalue()


def _cell(value: object) -> object:
    """A text as one line that neither a terminal nor a spreadsheet takes for an order."""
    if not isinstance(value, str):
        return value
    text = sanitize(value, MOST_CELL).replace(";", ",")  # some part cells at it
    return f"'{text}" if text.startswith(FORMULA) else text


def of_board(board: Board) -> dict[str, object]:
    """Which board it is."""
    names = ("gpu", "suite", "suite_sha256", "protocol")
    return {name: getattr(board, name) for name in names} | {"against": board.headline}


def _of_row(row: Row) -> dict[str, object]:
    speedup = row.speedup
    return {
        "group": row.group if row.rank else "unranked",
        "rank": row.rank,
        "tie": row.tie,
        "entry": row.entry,
        "kind": row.pick.kind.value,
        "language": row.pick.language,
        "author": row.pick.author,
        "speedup": speedup.value if speedup else None,
        "speedup_low": speedup.low if speedup else None,
        "speedup_high": speedup.high if speedup else None,
    }


def _each(results: Sequence[Result]) -> Iterator[dict[str, object]]:
    for result in results:
        fields = {name: getattr(result, name) for name in OF_A_RESULT}
        for name, value in fields.items():  # JSON has no word for what is no number
            fields[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        stretch = lasting(result)
        yield fields | {
            "status": result.status.value,
            "lasting_ms": stretch and stretch.latency_ms,
            "lasting_tflops": stretch and stretch.tflops,
            "lasting_mhz": stretch and stretch.clock_mhz,
            "lasting_w": stretch and stretch.power_w,
            "pj_per_flop": stretch and stretch.pj_per_flop,
        }
