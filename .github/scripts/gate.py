r"""The words under a pull request, and whether it made its own entry slower.

    python .github/scripts/gate.py --submission NAME --before OLD_RESULTS --after RESULTS \\
        --fail-on-regression 1% --comment comment.md

`before` is the results folder of the main branch, `after` the same with the new records added. Slower is who is slower
than in its last record, or in any run beside the same libraries: four losses of 0.9 % are one of 3.6 %. A standard is
only what a board ranks and what is no less exact. Only runs of the same card beside the same libraries can fail it: one
source was up to 5 % slower on another H200, and with another cuDNN all ratios move. Those are told.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness.board import query, record  # noqa: E402
from harness.board.history import words  # noqa: E402
from harness.board.rank import Board, Row, direct, doubtful, unfit  # noqa: E402
from harness.board.render.heat_map import loss_words  # noqa: E402
from harness.board.render.markdown import code, safe, table  # noqa: E402
from harness.board.render.text import (  # noqa: E402
    GROUP_WORDS,
    NEXT,
    board_title,
    ending,
    milliseconds,
    number,
    rank_text,
    times,
)
from harness.board.rivals import same_bits_as  # noqa: E402
from harness.cli.results.compare import Pair, geomean, is_regression, percent, through_baseline  # noqa: E402
from harness.measure.stats import Interval  # noqa: E402
from harness.schema import Result, Status  # noqa: E402

MARK = "<!-- attnboard: one comment per pull request, found by this line -->"
MOST_CHARACTERS = 60_000


def main(argv: list[str] | None = None) -> int:
    """0: fine; 1: a regression, or the submission did not pass everywhere."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submission", required=True)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--fail-on-regression", type=percent, default=0.01, metavar="PCT")
    parser.add_argument("--comment", type=Path, required=True)
    args = parser.parse_args(argv)
    old = {head.run for head in record.heads(args.before)[0] if head.entry == args.submission}
    now = find(args.after, args.submission, but=old) or find(args.after, args.submission)
    if now is None:
        print(f"{args.submission}: no record of a GPU under {args.after}")
        return 1
    then = find(args.before, args.submission, now[0])
    if stale := [r.config for r in now[1].results if r.run in old]:  # no verdict came in its place
        said = f"Nothing new was recorded on {safe(', '.join(stale))}; its old record stands."
        args.comment.write_text(f"{MARK}\n{said}\n")
        print(f"{args.submission}: no newer record than before came; measure it again")
        return 1
    runs, limit = earlier(args.before, then, now), args.fail_on_regression
    here, elsewhere = (regressions(runs, now[1], limit, alike=alike) for alike in (True, False))
    text = comment(now, then, here, elsewhere, limit)
    args.comment.write_text(text[:MOST_CHARACTERS], encoding="utf-8")
    print(text)
    return int(bool(here) or now[1].speedup is None)


def find(
    results: Path, entry: str, like: Board | None = None, but: Collection[str] = ()
) -> tuple[Board, Row] | None:
    """The newest board of a GPU that `entry` stands on by a run that is not in `but`, or the one that equals `like`."""
    boards, _ = query.boards_from(*record.heads(results))
    found = [
        (board, row)
        for board in boards.boards
        for row in board.rows
        if row.entry == entry and not board.is_cpu and (like is None or key(board) == key(like))
        if any(result.run not in but for result in row.results)
    ]
    return max(found, key=_when, default=None)


def _when(found: tuple[Board, Row]) -> tuple[str, int]:
    """To the second: on a busy day an entry is measured on several suites."""
    board, row = found
    return max(result.date for result in row.results), board.protocol


def key(board: Board) -> tuple[str, str, int]:
    """What makes two boards comparable."""
    return (board.gpu, board.suite_sha256, board.protocol)


Runs = Sequence[Sequence[Result]]


def earlier(results: Path, then: tuple[Board, Row] | None, now: tuple[Board, Row]) -> Runs:
    """The rows of its last record, and of each run on this board beside the same libraries."""
    board, row = now
    heads, _ = record.heads(results)
    mine = [h for h in heads if h.entry == row.entry and h.config in board.configs]
    told, _ = query.read(
        (h for h in mine if (h.gpu, h.suite_sha256, h.protocol) == key(board)), heads
    )
    runs = {"": [result for result in then[1].results if stands(result, row)] if then else []}
    for result in told:
        if stands(result, row) and libraries(result) == libraries(row.pick):
            runs.setdefault((result.path, result.run), []).append(result)
    return list(runs.values())


def stands(then: Result, row: Row) -> bool:
    """Whether what `row` is now may be held against `then`: ranked, and no less exact nor borrowed."""
    now = row.on(then.config)
    if now is None or doubtful(then) or unfit(then):
        return False
    less_exact = then.numerics_class != "exact" and now.numerics_class == "exact"
    was, is_now = (bool(same_bits_as(r.likeness, r.case.dtype)) for r in (then, now))
    return not less_exact and (not was or is_now)


def libraries(result: Result) -> tuple[str, ...]:
    """What the baselines of its run were made of."""
    machine = result.machine
    return (machine.torch, machine.triton, machine.cuda, machine.driver, machine.cudnn)


def place(result: Result) -> tuple[str, ...]:
    """Its card, and its libraries."""
    return (result.machine.uuid, *libraries(result))


def regressions(before: Runs, now: Row, limit: float, *, alike: bool) -> dict[str, Interval]:
    """Where the entry is surely slower by more than `limit` than in a run before of its place, or another."""
    found: dict[str, list[Interval | None]] = {}
    for results in before:
        then = {r.config: r for r in results if (place(r) == place(now.pick)) == alike}
        pairs = [changed(then.get(result.config), result) for result in now.results]
        for result, pair in zip(now.results, pairs, strict=True):
            found.setdefault(result.config, []).append(pair and pair.ratio)
        found.setdefault("geomean", []).append(overall(pairs))
    each = {
        name: [r for r in told if r and is_regression(r, limit)] for name, told in found.items()
    }
    return {name: min(told, key=lambda ratio: ratio.high) for name, told in each.items() if told}


def changed(then: Result | None, now: Result) -> Pair | None:
    """Now against then through the baseline both ran beside; above 1 is faster."""
    return through_baseline(now, then) if then else None


def changes(then: Row, now: Row) -> list[Pair | None]:
    """Of each config of `now`."""
    return [changed(then.on(result.config), result) for result in now.results]


def overall(pairs: Sequence[Pair | None]) -> Interval | None:
    """The same over all configs, if each can be compared."""
    told = [pair for pair in pairs if pair]
    return geomean(told) if told and len(told) == len(pairs) else None


# --------------------------------------------------------------------------- the comment


def comment(
    now: tuple[Board, Row],
    then: tuple[Board, Row] | None,
    here: dict[str, Interval],
    elsewhere: dict[str, Interval],
    limit: float,
) -> str:
    """Markdown; every word of the submission is washed."""
    board, row = now
    lines = [MARK, f"### {code(row.entry)} on {safe(board_title(board))}", ""]
    if row.speedup is None:
        bad = next((r for r in row.results if r.status is not Status.PASSED), None)
        lines += [f"**Not ranked**: {safe(row.why)}", ""]
        lines += [f"Next: {NEXT.get(bad.status, '')}", ""] if bad else []
    else:
        among = GROUP_WORDS.get(row.group, "")
        lines += [
            f"**Place {rank_text(row)}**{among}: {times(row.speedup)} over {code(board.headline)}",
            "",
        ]
        lines += [f"**{safe(loss_words(row))}**", ""] if loss_words(row) else []
        lines += _neighbours(board, row)
    lines += [_configs(board, row, then[1] if then else None), ""]
    if elsewhere:
        lines += [
            "Slower than its best record on another card or beside other libraries, which fails nothing: "
            f"{_losses(elsewhere)}",
            "",
        ]
    if here:
        lines += [f"**Regression** beyond {limit:.1%} of its best record: {_losses(here)}", ""]
    elif then and row.speedup and (ratio := overall(changes(then[1], row))):
        lines += [f"Against its own last record: {words(ratio)} {times(ratio)}", ""]
    lines += [
        f"Integrity {safe(row.integrity)}, suite `{board.suite_sha256[:12]}`, protocol {board.protocol}, "
        f"source `{row.pick.source_sha256[:16]}`."
    ]
    return "\n".join(lines) + "\n"


def _losses(worse: dict[str, Interval]) -> str:
    return "; ".join(f"{safe(name)} {words(ratio)} {times(ratio)}" for name, ratio in worse.items())


def _neighbours(board: Board, row: Row) -> list[str]:
    """How it stands against those right above and below, side by side where they ran together."""
    groups = (board.exact, board.approximate, board.library, board.steps)
    group = next(group for group in groups if row in group)
    at = group.index(row)
    lines = []
    for other in (*group[max(at - 1, 0) : at], *group[at + 1 : at + 2]):
        found = direct(row, other, board.configs)
        if found is not None:
            lines.append(f"- against {code(other.entry)}: {words(found)} {times(found)}")
    return [*lines, ""] if lines else []


def _configs(board: Board, row: Row, then: Row | None) -> str:
    head = ["config", "status", "TFLOP/s", "ms", f"over {safe(board.headline)}", "against before"]
    body = []
    for result in row.results:
        told = result.speedup
        ratio = Interval(told.value, told.low, told.high) if told else None
        before = changed(then.on(result.config), result) if then else None
        body.append(
            [
                safe(result.config),
                safe(ending(result)),
                number(result.tflops, 1),
                milliseconds(result.latency_ms),
                times(ratio),
                f"{words(before.ratio)} {times(before.ratio)}" if before else "–",
            ]
        )
    return table(head, body, right={2, 3})


if __name__ == "__main__":
    sys.exit(main())
