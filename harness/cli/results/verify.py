"""`verify RESULT`: do an old record's figures follow from its samples, is it the same today?

RESULT is an entry, ENTRY@RUN, or FILE.jsonl:LINE. First the record is audited (checksum,
commitment, figures from samples); then the entry is measured again beside the same baseline and the
two speed-ups are compared:

    SAME     their quotient is within --tolerance, and what two cards differ by
    FASTER   today it is faster, beyond tolerance and doubt
    SLOWER   today it is slower, beyond tolerance and doubt
    OTHER    today it is not exact, repeatable, its own work or of a judged lse, as the record is,
             or its manifest tells another author, language or sums
    CANNOT   it cannot be measured here again, or is too rough to tell; the reason is told
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import PROTOCOL
from harness.board import query, record
from harness.board.rank import Row, interval_of
from harness.board.record import newest
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
from harness.schema import MOST_BLOCKS, Kind, Machine, Result, Status, Suite, is_hidden

BY_MANIFEST = {"author", "language", "accumulates"}  # which the hash of its source covers


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
    old = _chosen(args)
    where = {place(row): row.case for row in old}
    heads, _ = record.heads(args.results)
    beside, _ = record.read(h for h in heads if place(h) in where)
    near = [b for b in beside if b.case == where[place(b)]]
    each = [(r, {b.entry: b for b in near if place(b) == place(r)}) for r in old]
    wrong = [f"{r.config}: {fault}" for r, mates in each for fault in of_record(r, mates)]
    bare = [f"{r.config}: {why}" for r, mates in each if (why := not_made_again(r, mates))]
    bare += [f"{r.config}: its shape: suite or secret is unknown" for r in old if not is_asked(r)]
    half = any(missing_beside(r, mates) for r, mates in each)
    document = {"entry": old[0].entry, "records": len(old), "faults": wrong, "not_made_again": bare}
    say: Callable[[str], object] = (lambda _: None) if args.json else print
    for line in wrong:
        say(f"audit: {sanitize(line)}")
    if wrong:
        say("next: do not trust this record; measure it again")
    else:
        these = "what could be made again" if bare else "figures"
        say(f"audit: {len(old)} records of {old[0].entry}: checksum, commitment and {these} agree")
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


def _chosen(args: argparse.Namespace) -> list[Result]:
    path, _, number = args.result.rpartition(":")
    if path.endswith(".jsonl"):
        return [_line(Path(path), number)]
    heads, _ = query.heads(args)
    wanted = [h for h in heads if h.status == Status.PASSED.value and not is_hidden(h.config)]
    found, _ = record.read_chosen(_named(args.result, wanted), _latest)
    if not found:
        raise UnavailableError(f"'{args.result}': no record can be read", "python run.py rank")
    return found


def _latest(heads: Iterable[record.Head]) -> list[record.Head]:
    """Those of the newest run and suite, of a GPU if there is one."""
    mine = newest(heads)
    latest = max(mine, key=lambda h: (h.gpu != "cpu", h.date, h.run), default=None)
    same = (latest.run, latest.suite_sha256) if latest else ()
    return [h for h in mine if (h.run, h.suite_sha256) == same]


def _line(path: Path, number: str) -> Result:
    bad, last = list[record.BadLine](), 0
    try:
        for last, _, raw in record.lines(path, bad):
            if str(last) == number:
                return record.parse(raw)
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
    if (first.machine.sms, first.machine.capability) != (machine.sms, machine.capability):
        return f"{first.machine.sms} SMs then, {machine.sms} here"
    if any(r.speedup is None for r in old):
        return "the record has no speed-up over a baseline"
    kind = "baselines" if first.kind is Kind.BASELINE else "submissions"
    there = places([first.entry], home / kind)
    return "" if there else f"{kind}/{first.entry} is not in {home}"


def _measure_again(args: argparse.Namespace, old: Sequence[Result]) -> Verdict:
    from harness.catalog.request import place_of_baseline, resolve
    from harness.cli.terminal import Terminal
    from harness.engine.session import execute
    from harness.measure.machine import inspect_machine
    from harness.process.sandbox.enter import usual_level

    first, machine = old[0], inspect_machine()
    why = obstacle(old, machine, base())
    if why or first.speedup is None:
        return Verdict("CANNOT", why)
    against = first.speedup.against
    suite = _suite(old, against, args.blocks)
    submissions = [first.entry] if first.kind is Kind.SUBMISSION else []
    named = dict.fromkeys([against, *([] if submissions else [first.entry])])
    baselines = [str(place_of_baseline(name, base() / "baselines")) for name in named]
    level = usual_level()  # a stranger's entry is measured again behind the same walls
    request = resolve(submissions, baselines, suite, machine, against, base(), level)
    sources = {one.name: one.source_sha256 for one in request.entrants}
    many = len(sources) > len(submissions) + len(baselines)  # 'all', a ladder, a folder of some
    if many or sources.get(first.entry) != first.source_sha256:
        why = f"the source has changed since: git log -- submissions/{first.entry}"
        return Verdict("CANNOT", why)
    fresh: list[Result] = []
    with Terminal(quiet_stdout=args.json) as observer:
        execute(request, fresh.append, observer)
    return _outcome(old, [r for r in fresh if r.entry == first.entry], args.tolerance)


def _suite(old: Sequence[Result], against: str, blocks: int) -> Suite:
    """The cases of the record as the suite of their hash measures them, if it is known here."""
    asked = {"cases": tuple(r.case for r in old), "against": against, "blocks": blocks}
    suite = by_sha256().get(old[0].suite_sha256)  # a name would be whoever wrote the line's
    plain = suite or Suite.model_validate(asked | {"name": old[0].suite})
    return plain.model_copy(update=asked | {"hidden": 0})


def _outcome(old: Sequence[Result], fresh: Sequence[Result], tolerance: float) -> Verdict:
    bad = (r for r in fresh if r.status is not Status.PASSED)
    failed = [f"{r.config}: {r.status.value} {r.reason}" for r in bad]
    ratios = [interval_of(r.speedup) for r in fresh if r.speedup]
    if failed or len(ratios) != len(old):
        return Verdict("CANNOT", "; ".join(failed) or "no baseline ran beside it today")
    told, now = (Row(rows[0].entry, tuple(rows)) for rows in (old, fresh))
    kept = {"exact": (told.exact, now.exact), "repeatable": (told.repeatable, now.repeatable)}
    kept["its own work"] = (not told.borrowed, not now.borrowed)
    kept["of a judged lse"] = (any(r.lse for r in old), all(r.lse for r in fresh))
    if lost := [what for what, (then, today) in kept.items() if then and not today]:
        return Verdict("OTHER", f"the record is {' and '.join(lost)}, today it is not")
    for row, again in ((row, again) for row in old for again in fresh if again.case == row.case):
        if odd := differences(row, again, BY_MANIFEST):
            return Verdict("OTHER", f"{row.config}: {odd[0]}")
    then = [interval_of(r.speedup) for r in old if r.speedup]
    one_card = len({r.machine.uuid for r in (*old, *fresh)}) == 1
    return judge(stats.geomean(then), stats.geomean(ratios), tolerance, one_card=one_card)
