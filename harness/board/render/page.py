"""Leaderboard → leaderboard.html: one file, no network, the same bytes from the same results.

The page is assets/page.html with the style, the scripts and the data put in. Everything that a
submission wrote travels as JSON and is shown as text, never as markup; the policy in the head of
the page allows these scripts by their hash and nothing else.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.board.history import Point
from harness.board.rank import Board, Leaderboard, Row, interval_of
from harness.board.render.heat_map import as_json, hidden_words, loss_words, maps
from harness.board.render.notes import Notes, conditions_of, lasting, lasting_words
from harness.board.render.reported import beside, claims
from harness.board.render.text import (
    DOUBT,
    head_names,
    next_step,
    rank_text,
    sanitize,
    scale,
    shape_words,
)
from harness.measure.gpu_specs import bandwidth, peak_tflops
from harness.measure.roofline import at_clock_pct, board_power_w, ceilings, limiter, sm_clock_mhz
from harness.measure.stats import Interval
from harness.problems import get_problem
from harness.schema import Result, Status

ASSETS = Path(__file__).parent / "assets"
MARK = re.compile(r"%%(HASH|STYLE|DATA|SCRIPT|TEXT)%%")
SCRIPTS = ("charts.js", "notes.js", "panel.js", "page.js")
MOST_POINTS = 200  # of the history of one entry; older ones are left out
MOST_NOTES = 40_000  # characters of NOTES.md
MOST_SAMPLES = 400  # blocks shown of one result

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Files:
    """Where the files lie that the page links to, as paths from its own folder; None: too far."""

    text: str = "leaderboard.md"
    results: str | None = "results/"
    home: str | None = ""  # of the checkout or project: `` or `../../`
    docs: bool = True  # whether our docs/ lie there: a project has none
    folders: Mapping[str, str] = field(default_factory=dict)  # entry → its folder in the checkout
    #: Files of records → as paths below `results`.
    records: Mapping[Path, str] = field(default_factory=dict)


def render(
    board: Leaderboard,
    history: Iterable[Point] = (),
    notes_of: Mapping[str, str] | None = None,
    files: Files | None = None,
) -> str:
    """The whole page. `notes_of`: entry → the text of its NOTES.md."""
    files = files or Files()
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    script = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    data = json.dumps(
        document(board, history, notes_of or {}, files), separators=(",", ":"), allow_nan=False
    )
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    put = {"HASH": digest, "STYLE": style, "DATA": data, "SCRIPT": script}
    put["TEXT"] = escape(quote(files.text))
    return MARK.sub(lambda found: put[found[1]], page)  # at once: what is put in may hold a mark


def document(
    board: Leaderboard, history: Iterable[Point], notes_of: Mapping[str, str], files: Files
) -> Json:
    """What the page knows, as JSON."""
    past: dict[tuple[object, ...], list[Point]] = {}
    for point in history:
        gpu, _, sha, protocol = point.board
        past.setdefault((gpu, sha, protocol, point.entry), []).append(point)
    return {
        "boards": [_board(one, past, notes_of, files) for one in board.boards],
        "main": next((i for i, one in enumerate(board.boards) if one is board.main), 0),
        "badLines": board.bad_lines,
        "text": files.text,
        "results": files.results,
        "home": files.home,
        "docs": files.home if files.docs else None,
    }


def _board(
    board: Board,
    past: Mapping[tuple[object, ...], list[Point]],
    notes_of: Mapping[str, str],
    files: Files,
) -> Json:
    key = (board.gpu, board.suite_sha256, board.protocol)
    rows, notes = [], Notes(board)
    for row in board.rows:
        fields = _row(board, row, notes, files)
        points = past.get((*key, row.entry), [])
        fields["history"] = [_point(p, board.headline) for p in points[-MOST_POINTS:]]
        text = notes_of.get(row.entry, "")
        fields |= {"notesText": text[:MOST_NOTES], "notesCut": len(text) > MOST_NOTES}
        fields["folder"] = files.folders.get(row.entry, "")
        rows.append(fields)
    return {
        "gpu": sanitize(board.gpu),
        "suite": board.suite,
        "sha": board.suite_sha256[:12],
        "protocol": board.protocol,
        "cpu": board.is_cpu,
        "headline": board.headline,
        "configs": [_config(board, config, notes) for config in board.configs],
        "grid": [as_json(one) for one in maps(board)] if board.is_grid else None,
        "rows": rows,
        "reported": [
            {"name": one.name, "source": one.source, "tflops": figures}
            for one, figures in beside(board)
        ],
        "claims": [[c.what, c.figure, c.setting, c.source] for c in claims(board)],
    }


def _config(board: Board, config: str, notes: Notes) -> Json:
    result = board.any_on(config)
    case, machine = result.case, result.machine
    floor = ceilings(case, machine, 0, get_problem(result.problem))
    peak, tensor_ms, exp_ms = peak_tflops(machine), floor.tensor_ms, floor.exp_ms
    return {
        "name": config,
        "shape": shape_words(case, " · "),
        "peak": peak,
        "expPeak": _short(peak * tensor_ms / exp_ms if peak and tensor_ms and exp_ms else None),
        "bandwidth": bandwidth(machine),
        "intensity": _short(floor.intensity),
        "machineNotes": [*map(sanitize, notes.of_machine(config))],
    }


def _row(board: Board, row: Row, notes: Notes, files: Files) -> Json:
    first, machine = row.pick, row.pick.machine
    records = (files.records.get(r.path, "") for r in row.results)
    return {
        "entry": row.entry,
        "kind": first.kind.value,
        "language": sanitize(first.language),
        "author": sanitize(first.author),
        "version": sanitize(first.version),
        "rank": row.rank,
        "place": rank_text(row),
        "exact": row.exact,
        "repeatable": row.repeatable,
        "group": row.group,
        "champion": row.champion,
        "speedup": _interval(row.speedup),
        "why": sanitize(row.why),
        "next": _next(row),
        "date": row.date,
        "integrity": row.integrity,
        "source": first.source_sha256,
        "harness": first.harness_commit,
        "run": sanitize(first.run, 80),
        "records": list(dict.fromkeys(filter(None, map(sanitize, records)))),
        "machine": {
            key: sanitize(str(value)) for key, value in machine.model_dump().items() if value
        },
        "best": _best(row),
        "hidden": [*{r.config: [r.config, sanitize(hidden_words(r))] for r in row.hidden}.values()],
        "loss": sanitize(loss_words(row)),
        "cells": {r.config: _cell(board, r, notes) for r in row.results},
    }


def _best(row: Row) -> Json | None:
    """Beside the best library of each cell."""
    if (worst := row.grid.worst) is None:
        return None
    least = [_short(worst.ratio.value, 8), worst.result.config]
    of = row.grid.of
    return {"over": _interval(row.grid.over_best), "least": least, "led": row.grid.led, "of": of}


def _next(row: Row) -> str:
    if failed := next((r for r in row.results if r.status is not Status.PASSED), None):
        return next_step(failed)
    return "" if row.speedup else "run it on every config of the suite, beside the baseline"


def _cell(board: Board, result: Result, notes: Notes) -> Json:
    cell: Json = {"status": result.status.value, "reason": sanitize(result.reason)}
    if result.status is not Status.PASSED or board.is_cpu:
        cell["log"] = [sanitize(line, 200) for line in result.log_tail.splitlines()[-12:]]
        if found := result.mismatch:  # digits from 0, all right, to 9, all wrong
            heads, levels = head_names(found), list(found.picture)
            cell["map"] = {"scale": scale(found), "heads": heads, "levels": levels}
        return cell
    speedup, worst, slack = result.speedup, result.error, result.slack
    samples = result.samples[:MOST_SAMPLES]
    return {
        **cell,
        "class": result.numerics_class,
        "tflops": _short(result.tflops),
        "ms": _short(result.latency_ms),
        "p10": _short(result.p10_ms),
        "p90": _short(result.p90_ms),
        "peakPct": _short(result.peak_pct),
        "maxDiff": _short(result.max_diff),
        "relL2": _short(worst.rel_l2) if worst else None,
        "worstRow": _short(worst.worst_row) if worst else None,
        "speedup": _interval(interval_of(speedup) if speedup else None),
        "blocks": result.blocks,
        "run": sanitize(result.run, 80),
        "slackPct": _short(slack.mean_pct) if slack else None,
        "mhz": _short(sm_clock_mhz(result)) or None,
        "watts": _short(board_power_w(result)) or None,
        "atClockPct": _short(at_clock_pct(result)),
        "limiter": limiter(result),
        **({"lasting": _lasting(result)} if result.sustained else {}),
        "kernels": [sanitize(name, 160) for name in result.kernels],
        "notes": [*map(sanitize, (*notes.of_entry(result), *conditions_of(result)))],
        "samples": [[s.block, _short(s.latency_ms), int(s.late)] for s in samples],
    }


def _lasting(result: Result) -> Json:
    """Of its stretch: figures for the table, words for the panel."""
    run = lasting(result)
    figures = {"tflops": _short(run.tflops), "pj": _short(run.pj_per_flop, 3)} if run else {}
    return {**figures, "words": lasting_words(result)}


def _point(point: Point, headline: str) -> Json:
    over = f"over {point.against}" * (point.against != headline)  # no point of that line
    return {
        "date": point.date[:10],
        "run": sanitize(point.run, 80),
        "source": point.source[:12],
        "speedup": None if over else _interval(point.speedup),
        "configs": len(point.configs),
        "failed": sanitize(point.failed) or over,
        **({"doubt": DOUBT} if point.doubtful else {}),
    }


def _interval(ratio: Interval | None) -> list[float | None] | None:
    return [_short(x, 8) for x in (ratio.low, ratio.value, ratio.high)] if ratio else None


def _short(value: float | None, digits: int = 6) -> float | None:
    """As many significant digits as the page shows, and two more, so that rounding agrees."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")
