"""`show NAME`: everything the newest records say of one entry."""

import argparse
import json

from harness.board import query, record
from harness.board.rank import Board, Row, interval_of
from harness.board.render.heat_map import heat_map, hidden_words, loss_words, summary, text_lines
from harness.board.render.notes import Notes, conditions_of
from harness.board.render.text import (
    board_title,
    conditions,
    ending,
    error_map,
    milliseconds,
    next_step,
    number,
    place_text,
    printed,
    sanitize,
    scientific,
    times,
)
from harness.catalog.entrants import entry_name
from harness.errors import Exit, typed
from harness.process.text import dumps
from harness.schema import Result, Status


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add = parser.add_argument
    add("name")
    add("--samples", action="store_true", help="both clocks of every block")
    add("--json", action="store_true", help="the records themselves, one JSON document")
    query.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 with the nearest name if there is no such entry."""
    name = entry_name(args.name)
    shown = [(board, row) for board in query.boards(args).boards for row in board.rows]
    if not (found := [(board, row) for board, row in shown if row.entry == name]):
        raise query.unknown(name, sorted({row.entry for _, row in shown}))
    if args.json:
        every = [result for _, row in found for result in (*row.results, *row.hidden)]
        print(dumps({"results": [json.loads(record.to_line(result)) for result in every]}))
        return Exit.OK
    for board, row in found:
        print("\n".join(_row(board, row)))
        for result in (*row.results, *row.hidden):
            print("\n".join(_result(board, result, samples=args.samples)))
        print()
    commands = f"python run.py compare {args.name} OTHER · python run.py history {args.name}"
    print(f"next: {typed(commands)}")
    return Exit.OK


def _row(board: Board, row: Row) -> list[str]:
    first = row.pick
    place = row.speedup and f"{place_text(row)}, {times(row.speedup)} over {board.headline}"
    beside = [summary(row), *text_lines(heat_map(row))] if row.grid.cells else []
    beside += [loss_words(row)] if loss_words(row) else []
    return [
        f"{row.entry} on {board_title(board)}: {sanitize(place or f'not ranked: {row.why}')}",
        f"  {first.kind.value}, {sanitize(first.language)}, by {sanitize(first.author)}",
        f"  {sanitize(first.version) or 'own code'}, source {first.source_sha256[:16]}",
        *dict.fromkeys(map(_run, row.results)),
        *(f"  {line}" for line in beside),
    ]


def _run(result: Result) -> str:
    """Of which run one of a row's results is, and what it was measured with."""
    told = result.machine
    where = f"{told.sms} SMs, {told.power_limit_w:.0f} W" if told.sms else sanitize(told.cpu)
    run = f"run {sanitize(result.run, 80)}, harness {result.harness_commit[:12]}"
    return f"  {run}: {where}, {conditions(result)}, python {sanitize(told.python)}"


def _result(board: Board, result: Result, *, samples: bool) -> list[str]:
    drawn = f" ({hidden_words(result)} TFLOP/s)" if result.case.hidden else ""
    lines = [f"  {result.config}{drawn}: {ending(result)}"]
    if result.status is not Status.PASSED:
        if result.mismatch:
            lines += [f"    {drawn}" for drawn in error_map(result.mismatch)]
        lines.append(f"    next: {typed(next_step(result))}")
        lines += [f"    {said}" for said in printed(result.log_tail)]
        return lines
    speedup = result.speedup
    ratio, rival = (times(interval_of(speedup)), speedup.against) if speedup else ("–", "–")
    spread = f"p10 {milliseconds(result.p10_ms)}, p90 {milliseconds(result.p90_ms)}"
    lines.append(
        f"    {milliseconds(result.latency_ms)} ms ({spread}), {number(result.tflops, 1)} TFLOP/s, "
        f"{number(result.peak_pct, 1)} % of peak, {result.blocks} blocks of {result.run}"
    )
    lines.append(f"    speed-up over {rival}: {ratio}; {result.numerics_class}; {result.integrity}")
    if worst := result.error:
        diff, l2, row = map(scientific, (worst.max_diff, worst.rel_l2, worst.worst_row))
        lines.append(f"    max diff {diff}, relative L2 {l2}, worst row {row}")
    if slack := result.slack:
        said = f"{slack.mean_pct:.2f} % of the mean, {slack.burst_pct:.2f} % of a burst"
        lines.append(f"    clock slack {said}")
    lines += [f"    {sanitize(line)}" for line in conditions_of(result)]
    if result.kernels:
        lines.append(f"    kernels: {sanitize(', '.join(result.kernels))}")
    lines += [f"    tuned: {sanitize(line)}" for line in result.configs]
    lines += [f"    note: {sanitize(note)}" for note in Notes(board).of_entry(result)]
    lines += [f"    {said}" for said in printed(result.log_tail)]
    if samples:
        rows = [["block", "T1 ms a call", "T2 ms a burst", "MHz", "J a turn", ""]]
        for s in result.samples:
            clocks = milliseconds(s.latency_ms), milliseconds(s.t2_ms)
            beside = str(s.sm_mhz or "–"), number(s.energy_j, 1), "late" if s.late else ""
            rows.append([str(s.block), *clocks, *beside])
        lines.append(query.table(rows, indent="    "))
    return lines
