"""`verify RESULT`: do an old record's figures follow from its samples, is it the same today?

RESULT is an entry (all that its newest board shows, hidden shapes too), ENTRY@RUN, or
FILE.jsonl:LINE. First the record is audited (checksum, commitment, figures from samples); then the
entry is measured again beside the same baseline and the two speed-ups are compared:

    SAME     their quotient is within --tolerance, and what two cards differ by
    FASTER   today it is faster, beyond tolerance and doubt
    SLOWER   today it is slower, beyond tolerance and doubt
    OTHER    today it is not exact, repeatable, its own work or of a judged lse, as the record is,
             or its manifest tells another author, language or sums
    CANNOT   not all of it can be measured here again, or is too rough to tell; the reason is told
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import PROTOCOL
from harness.board import query, record
from harness.board.rank import HELD, Row, interval_of, leaderboard, unasked, unfit
from harness.board.render.text import sanitize, times
from harness.board.rivals import place
from harness.catalog.entrants import places
from harness.catalog.suites import by_sha256, is_asked
from harness.cli.arguments import whole
from harness.cli.results.compare import _named, percent
from harness.errors import Exit, UnavailableError, UsageError, typed
from harness.measure import stats
from harness.measure.audit import differences, missing_beside, not_made_again, of_record
from harness.measure.stats import Interval
from harness.process.project import base
from harness.process.text import dumps
from harness.schema import MOST_BLOCKS, Kind, Machine, Result, Status, Suite

BY_MANIFEST = {"author", "language", "accumulates"}  # which the hash of its source covers
OF_SHAPES = 0.15  # hidden ones of two runs; two of 148 honest pairs on H200s differed by more


class Verdict(NamedTuple):
    """SAME, FASTER, SLOWER, OTHER or CANNOT, and why."""

    word: str
    why: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add = parser.add_argument
    add("result", metavar="RESULT", help="ENTRY, ENTRY@RUN or FILE.jsonl:LINE")
    add("--audit-only", action="store_true", help="check the record itself, measure nothing")
    add("--tolerance", type=percent, default=0.02, metavar="PCT", help="default 2%%")
    query.add_json(parser)
    add("--blocks", type=whole(1, MOST_BLOCKS), default=20, metavar="N")
    query.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """0: SAME or FASTER (or a clean audit); 1: SLOWER, OTHER or a contradiction; 3: CANNOT.

    An audit alone that finds no baseline to make a speed-up again is a CANNOT.
    """
    old, others = _chosen(args)
    where = {place(row): row.case for row in old}
    heads = [h for path in {r.path for r in old} for h in record.heads(path)[0]]
    beside, _ = record.read(h for h in heads if place(h) in where)
    near = [b for b in beside if b.case == where[place(b)]]
    each = [(r, {b.entry: b for b in near if place(b) == place(r)}) for r in old]
    wrong = [f"{r.config}: {fault}" for r, mates in each for fault in of_record(r, mates)]
    bare = [f"{r.config}: {why}" for r, mates in each if (why := not_made_again(r, mates))]
    bare += [f"{r.config}: its shape: suite or secret is unknown" for r in old if not is_asked(r)]
    bare += [f"{r.config}: its stretch: its power is believed" for r in old if r.sustained]
    half = any(missing_beside(r, mates) for r, mates in each) or any(r.sustained for r in old)
    document = {"entry": old[0].entry, "records": len(old), "faults": wrong, "not_made_again": bare}
    say: Callable[[str], object] = (lambda _: None) if args.json else print
    for line in wrong:
        say(f"audit: {sanitize(line)}")
    if wrong:
        files = ", ".join(sorted({sanitize(str(r.path)) for r in old}))
        say(f"next: do not trust this record of {files}; measure it again")
    else:
        these = "what could be made again" if bare else "figures"
        say(f"audit: {len(old)} records of {old[0].entry}: checksum, commitment and {these} agree")
    bare += others
    for line in bare:
        say(f"not made again: {sanitize(line)}")
    if wrong or args.audit_only:
        if args.json:
            print(dumps(document))
        return Exit.SUBMISSION_FAILED if wrong else Exit.UNAVAILABLE if half else Exit.OK
    verdict = _measure_again(args, query.anew(old, heads))
    if args.json:
        print(dumps(document | {"verdict": verdict.word, "why": verdict.why}))
    say(f"{verdict.word}: {sanitize(verdict.why)}")
    say(typed(f"next: python run.py history {old[0].entry}"))
    ends = dict.fromkeys(("SLOWER", "OTHER"), Exit.SUBMISSION_FAILED) | {"CANNOT": Exit.UNAVAILABLE}
    return ends.get(verdict.word, Exit.OK)


def _chosen(args: argparse.Namespace) -> tuple[list[Result], list[str]]:
    """All that the newest board shows of it, of a GPU if there is one; its other boards."""
    path, _, number = args.result.rpartition(":")
    if path.endswith(".jsonl"):
        return [_line(Path(path), number)], []
    heads, _ = query.heads(args)
    found, _ = record.read_chosen(_named(args.result, heads), record.for_boards)
    shown = [(board, row) for board in leaderboard(found).boards for row in board.rows]
    if not shown:
        raise UnavailableError(f"'{args.result}': no record can be read", "python run.py rank")
    shown.sort(key=lambda one: (not one[0].is_cpu, max((r.date, r.run) for r in one[1].results)))
    *others, (_, row) = shown
    named = [f"{b.suite} on {b.gpu}, protocol {b.protocol}, another board" for b, _ in others]
    return sorted((*row.results, *row.hidden), key=lambda r: not r.latency_ms), named


def _line(path: Path, number: str) -> Result:
    bad, last = list[record.BadLine](), 0
    try:
        for last, _, raw in record.lines(path, bad):
            if str(last) == number:
                return record.parse(raw, path)
    except ValueError as error:
        hint = "python run.py rank names all such lines"
        raise UsageError(f"{path}:{number}: {error}", hint) from None
    said = str(bad[0]) if bad else f"{path}:{number}: it has lines 1 to {last}"
    raise UsageError(said, "name a line that exists: FILE.jsonl:1")


# --------------------------------------------------------------------------- the record and today


def judge(old: Interval, new: Interval, tolerance: float, *, one_card: bool = True) -> Verdict:
    """Two speed-ups over the same baseline, one old, one of today, on one card or on two."""
    change = stats.quotient(new, stats.standard(old), one_card=one_card)
    words = f"today {times(new)}, then {times(old)}: quotient {times(change)}"
    words += "" if one_card else ", on another card"
    if abs(math.log(change.value)) <= math.log1p(tolerance) + (0 if one_card else stats.CARDS_LOG):
        return Verdict("SAME", words)
    if change.holds(1.0):
        return Verdict("CANNOT", f"{words}: too rough to tell")
    return Verdict("FASTER" if change.value > 1 else "SLOWER", words)


def obstacle(old: Sequence[Result], machine: Machine, home: Path) -> str:
    """Why it cannot be measured here again, or an empty string."""
    first = old[0]
    if not first.machine.has_gpu:
        return "a CPU's times are never compared; the record agrees with itself"
    if first.protocol != PROTOCOL:
        return f"protocol {first.protocol} then, {PROTOCOL} today"
    gpu = machine.gpu if machine.has_gpu else "cpu"
    if first.gpu != gpu:
        return f"measured on {first.gpu}, this is {gpu}"
    if {(r.machine.sms, r.machine.capability) for r in old} != {(machine.sms, machine.capability)}:
        return f"{first.machine.sms} SMs then, {machine.sms} here"
    over = {r.speedup.against if r.speedup else "" for r in old if r.latency_ms}
    if "" in over or len(over) != 1:
        return "the record has no speed-up, or not over one baseline everywhere"
    timed = _timed(old)
    drawn = {row.case.headdim for row in timed.hidden}
    if lone := drawn & unasked(timed.results, timed.hidden):  # what it loses off them is not told
        return f"headdim {min(lone)}: not each run of its rows has a hidden one: name ENTRY@RUN"
    kind = "baselines" if first.kind is Kind.BASELINE else "submissions"
    there = places([first.entry], home / kind)
    return "" if there else f"{kind}/{first.entry} is not in {home}"


def _measure_again(args: argparse.Namespace, old: Sequence[Result]) -> Verdict:
    from harness.catalog.request import place_of_baseline, resolve
    from harness.cli.terminal import Terminal
    from harness.engine.session import execute
    from harness.measure.machine import inspect_machine
    from harness.process.sandbox.enter import usual_level  # a stranger's entry has the same walls

    first, machine = old[0], inspect_machine()
    why = obstacle(old, machine, base())
    if why or first.speedup is None:
        return Verdict("CANNOT", why)
    against = first.speedup.against
    try:
        suite = _suite(old, against, args.blocks)
    except ValueError:  # they are more than one may have, or their packed sequences are
        return Verdict("CANNOT", "no suite can ask for all its cases")
    submissions = [first.entry] if first.kind is Kind.SUBMISSION else []
    named = dict.fromkeys([against, *([] if submissions else [first.entry])])
    baselines = [str(place_of_baseline(name, base() / "baselines")) for name in named]
    request = resolve(submissions, baselines, suite, machine, against, base(), usual_level())
    sources = {one.name: one.source_sha256 for one in request.entrants}
    many = len(sources) > len(submissions) + len(baselines)  # 'all', a ladder, a folder of some
    if many or sources.get(first.entry) != first.source_sha256:
        return Verdict("CANNOT", f"its source has changed: git log -- submissions/{first.entry}")
    fresh: list[Result] = []
    with Terminal(quiet_stdout=args.json) as observer:
        execute(request, fresh.append, observer)
    return _outcome(old, [r for r in fresh if r.entry == first.entry], args.tolerance)


def _suite(old: Sequence[Result], against: str, blocks: int) -> Suite:
    """The cases of the record as the suite of their hash measures them, if it is known here."""
    cases = tuple(r.case for r in old if not r.case.hidden)
    asked = {"cases": cases, "against": against, "blocks": blocks}
    suite = by_sha256().get(old[0].suite_sha256)  # a name would be whoever wrote the line's
    plain = suite or Suite.model_validate(asked | {"name": old[0].suite})
    hidden = max(1, plain.hidden) if len(cases) < len(old) else 0
    return plain.model_copy(update=asked | {"hidden": hidden})


def _outcome(old: Sequence[Result], fresh: Sequence[Result], tolerance: float) -> Verdict:
    ends = {r.config: r.status for r in old}
    odd = (r for r in fresh if r.status is not ends.get(r.config, Status.PASSED))
    failed = [f"today {r.config}: {r.status.value} {r.reason}" for r in odd]
    least = min(HELD.index(r.held) for r in old)
    failed += [f"today {why}" for r in fresh if r.speedup and (why := unfit(r))]
    failed += [f"today {r.config}: {r.held}" for r in fresh if HELD.index(r.held) < least]
    today = {r.config: interval_of(r.speedup) for r in fresh if r.speedup}
    if failed or any(r.config not in today for r in old if r.speedup):
        return Verdict("CANNOT", "; ".join(failed) or "no baseline ran beside it today")
    told, now = _timed(old), _timed(fresh)
    kept = {"exact": (told.exact, now.exact), "repeatable": (told.repeatable, now.repeatable)}
    kept["its own work"] = (not told.borrowed, not now.borrowed)
    kept["of a judged lse"] = (any(r.lse for r in told.results), all(r.lse for r in now.results))
    if lost := [what for what, (then, again) in kept.items() if then and not again]:
        return Verdict("OTHER", f"the record is {' and '.join(lost)}, today it is not")
    for row in old:
        if other := differences(row, fresh[0], BY_MANIFEST):
            return Verdict("OTHER", f"{row.config}: {other[0]}")
    parts = [("", told.results, tolerance)]  # and none of its configs makes up for another
    parts += [(f"{r.config}: ", (r,), 2 * tolerance) for r in told.results]
    parts += [("hidden shapes, drawn anew: ", told.hidden, OF_SHAPES)] if told.hidden else []
    one_card, every = len({r.machine.uuid for r in (*old, *fresh)}) == 1, list[Verdict]()
    for where, rows, within in parts:
        then = stats.geomean([interval_of(r.speedup) for r in rows if r.speedup])
        again = stats.geomean([today[r.config] for r in rows])
        word, why = judge(then, again, within, one_card=one_card)
        every.append(Verdict(word, where + why))
    if left := ", ".join(r.config for r in old if r.sustained):
        every.append(Verdict("CANNOT", f"{every[0].why}; not measured: the stretch of {left}"))
    return next(v for word in ("SLOWER", "CANNOT", every[0].word) for v in every if v.word == word)


def _timed(rows: Sequence[Result]) -> Row:
    mine = [r for r in rows if r.speedup]
    official = tuple(r for r in mine if not r.case.hidden)
    return Row(rows[0].entry, official, tuple(r for r in mine if r.case.hidden))
