"""Leaderboard → leaderboard.md. The same results give the same bytes: no clock, no path."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from harness.board.rank import Board, Leaderboard, Row, direct, interval_of
from harness.board.render import heat_map
from harness.board.render.notes import Notes, lasting
from harness.board.render.reported import beside, claims
from harness.board.render.text import (
    GROUP_WORDS,
    board_title,
    conditions,
    ending,
    milliseconds,
    next_step,
    number,
    rank_text,
    sanitize,
    scientific,
    shape_words,
    side_by_side,
    times,
)
from harness.measure import stats
from harness.schema import Result, Status

#: What GitHub makes a mention, a link (of a commit by its whole hash) or a picture of, also behind
#: a backslash; a space without width behind it keeps it a text.
LINKED = re.compile(
    r"@|#(?=\d)|[a-z](?=://)|www(?=\.)|GH(?=-\d)|:(?=(?:[\w+-]*[a-z+-][\w+-]*|100|1234):)"
    r"|(?<![0-9a-z])[0-9a-f](?=[0-9a-f]{39}(?![0-9a-z]))",
    re.IGNORECASE,
)
APART = "\u200b"
HEAD = """# Leaderboard

Built by `python run.py rank` from records; do not edit by hand.

**Score**: geometric mean over the configs of (time of the baseline / time of the entry), paired
inside each block, with its 95 % interval; above 1 is faster. **Rank**: `=` marks entries that
cannot be told apart from the best of them; rows of two cards are told apart beyond 2.5 %. \
**Integrity**: `judged` rows were checked and timed by a process that never
ran the submission; `cooperative` rows were not, and beside `unlocked` ones others' kernels may have
run: a `?` stands behind their place."""
REST = """ How to read the rest:
[docs/how-to-read-the-board.md]({home}docs/how-to-read-the-board.md)."""
#: What stands above each table but the first.
APPROXIMATE = (
    "Within the limit on the largest difference but outside those on the relative error: "
    "ranked among themselves."
)
LIBRARY = (
    "Submissions that launched a library's attention or matrix products, by the names of the "
    "kernels that ran, or whose results are a library's bit for bit: ranked among themselves."
)
SPEEDUPS = "Speed-ups with their intervals"
GRID = (
    "TFLOP/s · time of the best library in that cell / time of the entry, each library in the "
    "newest run that timed both. Bold: the lower end of the 95 % interval is below 1, the cell is "
    "not led."
)
HIDDEN = (
    "Shapes that each run draws from its secret, batch×heads×seqlen, and TFLOP/s there: in no "
    "score. Rows of different runs met different shapes."
)
STEPS = "How an entry came to be, from its own folder: timed and verified alike, without a place."
#: Columns of a config's table that hold words.
LEFT = {"entry", "p10 – p90 ms", "notes"}
EMPTY = """
No results yet. Measure one: `python run.py --submission triton_template`
"""


def render(
    board: Leaderboard, pictures: Mapping[int, str] | None = None, home: str | None = ""
) -> str:
    """The whole file. `pictures`: index of a board → path of its SVG.

    home: path of the checkout, None where there is none: its documents are not there to be read.
    """
    parts = [f"{HEAD}{'' if home is None else REST.format(home=home)}\n"]
    parts.extend(_section(one, (pictures or {}).get(i, "")) for i, one in enumerate(board.boards))
    if not board.boards:
        parts.append(EMPTY)
    if board.bad_lines:
        left = f"{board.bad_lines} record lines were left out"
        parts.append(f"{left}; `python run.py rank` names them.\n")
    return "\n".join(parts)


# --------------------------------------------------------------------------- one board


def _section(board: Board, picture: str) -> str:
    notes = Notes(board)
    lines = [f"## {safe(board_title(board))}", "", _identity(board), ""]
    if picture:
        shown = "Each cell beside the best library" if board.is_grid else SPEEDUPS
        lines += [f"![{shown}]({picture})", ""]
    if board.is_cpu:
        said = "CPU times are never ranked; these rows say who passed."
        return "\n".join([*lines, said, "", _cpu_table(board), ""])
    if board.exact:
        lines += [_main_table(board, board.exact), ""]
    for title, words, rows in (
        ("Approximate", APPROXIMATE, board.approximate),
        ("Library kernels", LIBRARY, board.library),
        ("Steps of ladders", STEPS, board.steps),
    ):
        if rows:
            lines += [f"### {title}", "", words, "", _main_table(board, rows), ""]
    lines += _ties(board)
    names = [code(row.entry) for row in board.ranked if row.repeatable]
    if 0 < len(names) < len(board.ranked):  # who gave the same bits twice, where somebody did not
        lines += [f"Bitwise repeatable on every config: {', '.join(names)}.", ""]
    lines += _hidden(board)
    for one in heat_map.maps(board):
        head = ["mask, headdim", *map(heat_map.length, one.lengths)]
        body = heat_map.body(one, heat_map.in_markdown)
        lines += [f"### {code(one.row.entry)} beside the best library of each cell", ""]
        lines += [f"{safe(heat_map.summary(one.row))}. {GRID}", "", table(head, body), ""]
    for config in () if board.is_grid else board.configs:
        lines += [f"### {safe(config)}", "", shape_words(board.any_on(config).case), ""]
        lines += [_config_table(board, config, notes), ""]
        lines += [f"- {safe(line)}" for line in notes.of_machine(config)]
        lines += [""] if lines[-1] else []
    if board.unranked:
        lines += ["### Not ranked", "", _unranked_table(board), ""]
    lines += _reported(board)
    return "\n".join(lines)


def _identity(board: Board) -> str:
    machines = sorted({conditions(r) for row in board.rows for r in row.results} - {""})
    parts = [
        f"suite `{board.suite_sha256[:12]}`",
        f"protocol {board.protocol}",
        f"speed-up over `{safe(board.headline)}`" if board.headline and not board.is_cpu else "",
        f"measured with {'; '.join(map(safe, machines))}" if machines else "",
    ]
    return " · ".join(part for part in parts if part)


def _main_table(board: Board, rows: Sequence[Row]) -> str:
    head = ["rank", "entry", "kind", "language", "speed-up [95 %]"]
    if board.is_grid:
        head += ["over the best library of each cell", "least, where", "cells led"]
    else:
        head += [f"{safe(config)} TFLOP/s" for config in board.configs]
    wide = len(head)
    head += ["integrity", "date"]
    body = []
    for row in rows:
        name = code(row.entry) + (f", {heat_map.loss_mark(row)}" if heat_map.loss_mark(row) else "")
        cells = [rank_text(row), name, row.pick.kind.value, safe(row.pick.language)]
        ratio, _, interval = times(row.speedup).partition(" ")
        cells.append(f"**{ratio}** {interval}" if row.speedup else ratio)
        if board.is_grid:
            cells += _over_best(row)
        else:
            cells += [number(_on(row, config).tflops, 1) for config in board.configs]
        body.append([*cells, safe(row.integrity), row.date])
    return table(head, body, right={0, *range(5, wide)})


def _over_best(row: Row) -> list[str]:
    if (worst := row.grid.worst) is None:
        return ["–"] * 3
    where = f"{worst.ratio.value:.3f}×, {safe(worst.result.config)}"
    return [times(row.grid.over_best), where, f"{row.grid.led} of {row.grid.of}"]


def _hidden(board: Board) -> list[str]:
    """Hidden shapes of every row that met some, and whose official ones are faster than those."""
    if not (rows := [row for row in board.rows if row.hidden]):
        return []
    names = sorted({r.config for row in rows for r in row.hidden}, key=lambda n: (len(n), n))
    body = []
    for row in rows:
        on = {r.config: safe(heat_map.hidden_words(r)) for r in row.hidden}
        body.append([code(row.entry), *(on.get(name, "–") for name in names)])
    lines = ["### Hidden shapes", "", HIDDEN, "", table(["entry", *map(safe, names)], body), ""]
    said = [(code(row.entry), heat_map.loss_words(row)) for row in rows]
    losses = [f"- {name}: {safe(words)}" for name, words in said if words]
    return [*lines, *losses, *([""] if losses else [])]


def _config_table(board: Board, config: str, notes: Notes) -> str:
    head = ["rank", "entry", "TFLOP/s", "% of peak", "ms", "p10 – p90 ms"]
    rows = (*board.ranked, *board.steps)
    lasts = any(lasting(_on(row, config)) for row in rows)
    head += ["lasting TFLOP/s", "pJ/FLOP"] if lasts else []
    head += [f"speed-up over {safe(board.headline)}", "max diff", "correct", "blocks", "notes"]
    body = []
    for row in rows:
        r = _on(row, config)
        body.append(
            [
                rank_text(row) + GROUP_WORDS.get(row.group, ""),
                code(row.entry),
                number(r.tflops, 1),
                number(r.peak_pct, 1),
                milliseconds(r.latency_ms),
                f"{milliseconds(r.p10_ms)} – {milliseconds(r.p90_ms)}",
                *(_lasting(r) if lasts else ()),
                times(interval_of(r.speedup) if r.speedup else None),
                scientific(r.max_diff),
                str(r.correct),
                str(r.blocks),
                safe("; ".join(notes.of_entry(r)) or "–"),
            ]
        )
    right = {i for i, name in enumerate(head) if name not in LEFT and "speed-up" not in name}
    return table(head, body, right=right) if body else "Nobody is ranked here yet."


def _lasting(result: Result) -> tuple[str, str]:
    """TFLOP/s and pJ/FLOP of its stretch."""
    stretch = lasting(result)
    return (number(stretch.tflops, 1), number(stretch.pj_per_flop, 2)) if stretch else ("–", "–")


def _ties(board: Board) -> list[str]:
    """What it would take to tell apart those who share a place."""
    lines = []
    for group in (board.exact, board.approximate, board.library):
        for better, worse in itertools.pairwise(group):
            if better.rank != worse.rank:
                continue
            if (found := direct(better, worse, board.configs)) is None:
                kinds = {row.entry: row.pick.kind for row in (better, worse)}
                more = "were not run side by side for these rows; run them together to tell them "
                more += f"apart: `{side_by_side(kinds, board.suite)}`"
            else:
                needed = stats.blocks_to_separate(found, min(r.blocks for r in better.results))
                more = f"differ by {times(found)}: "
                more += {
                    None: "too little to tell apart in any practical number of blocks",
                    0: "told apart from each other, but not from the best of their group",
                }.get(needed, f"about {needed} more blocks would tell them apart")
            lines.append(f"- {code(better.entry)} and {code(worse.entry)} {more}")
    return [*lines, ""] if lines else []


def _unranked_table(board: Board) -> str:
    body = []
    for row in board.unranked:
        bad = next((r for r in row.results if r.status is not Status.PASSED), None)
        next_move = next_step(bad) if bad else "run it on every config of the suite"
        start = [code(row.entry), row.pick.kind.value, safe(row.pick.language)]
        body.append([*start, safe(row.why), safe(next_move), row.date])
    return table(["entry", "kind", "language", "why", "next", "date"], body)


def _cpu_table(board: Board) -> str:
    head = ["entry", "kind", "language", *map(safe, board.configs), "integrity", "date"]
    body = []
    for row in board.rows:
        cells = [safe(ending(r)) if r else "not run" for r in map(row.on, board.configs)]
        start = [code(row.entry), row.pick.kind.value, safe(row.pick.language)]
        body.append([*start, *cells, safe(row.integrity), row.date])
    return table(head, body)


def _on(row: Row, config: str) -> Result:
    result = row.on(config)
    assert result is not None  # a ranked row has every config
    return result


# --------------------------------------------------------------------------- reported figures


def _reported(board: Board) -> list[str]:
    """What others report of this very problem and these very shapes; nothing if nobody does."""
    if not (found := beside(board)):
        return []
    configs = [c for c in board.configs if any(c in figures for _, figures in found)]
    body = [
        [safe(one.name), *(number(figures.get(c), 0) for c in configs), safe(one.source)]
        for one, figures in found
    ]
    others = [[*map(safe, (c.what, c.figure, c.setting, c.source))] for c in claims(board)]
    return [
        "### Reported elsewhere (not ranked)",
        "",
        "TFLOP/s as their authors report them, on their machines and by their protocols.",
        "",
        table(["kernel", *map(safe, configs), "source"], body, right={*range(1, len(configs) + 1)}),
        "",
        table(["kernel", "figure", "setting", "source"], others),
        "",
    ]


# --------------------------------------------------------------------------- markdown itself


def table(head: Sequence[str], body: Iterable[Sequence[str]], right: set[int] | None = None) -> str:
    """A table in markdown; `right`: columns of figures."""
    rule = ["---:" if right and i in right else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *body))


def safe(text: str) -> str:
    """Text that markdown and HTML take as text: no markup, nobody mentioned, nothing linked."""
    text = sanitize(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = LINKED.sub(lambda found: f"{found[0]}{APART}", text)
    text = re.sub(r"([\\`*\[\]|~#!$])", r"\\\1", text)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\_", text)  # inside a word it is text


def code(text: str) -> str:
    """A name in code type; what would end the code or the cell is taken out."""
    return f"`{sanitize(re.sub(r'[`|<>]', '', text), 80) or '?'}`"
