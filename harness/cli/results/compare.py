"""`compare A B`: how much faster A is than B, per config, with interval; exit code for scripts."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from harness.board import query
from harness.board.history import words
from harness.board.rank import interval_of, unfit
from harness.board.record import Head, newest, of_source
from harness.board.render.notes import energy_ratio, energy_words, lasting, speed_ratio
from harness.board.render.text import (
    DOUBT,
    UNHELD,
    milliseconds,
    number,
    sanitize,
    side_by_side,
    times,
)
from harness.board.rivals import direct_on
from harness.errors import Exit, UnavailableError, UsageError, typed
from harness.measure import stats
from harness.measure.stats import Interval
from harness.process.text import dumps
from harness.schema import BLAMELESS, Kind, Result, Status, is_hidden


@dataclass(frozen=True, slots=True)
class Pair:
    """Both on one config. `measured` over 1: A is faster. `paired`: both ran in the same blocks."""

    a: Result
    b: Result
    measured: Interval
    paired: bool

    @property
    def one_card(self) -> bool:
        """Whether no other card can be the reason of a difference."""
        return self.a.machine.uuid == self.b.machine.uuid

    @property
    def ratio(self) -> Interval:
        """`measured`, wider where two cards were compared."""
        return self.measured if self.one_card else stats.across_cards(self.measured)


def geomean(pairs: Sequence[Pair]) -> Interval:
    """Over the configs; cards differ on all alike, so that is added once, as on the board."""
    found = stats.geomean([pair.measured for pair in pairs])
    return found if all(pair.one_card for pair in pairs) else stats.across_cards(found)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add_pair(parser)
    parser.add_argument("more", metavar="C", nargs="*", help="A against each of these, too")
    query.add_json(parser)
    parser.add_argument(
        "--fail-on-regression",
        metavar="PCT",
        type=percent,
        default=None,
        help="exit 1 if A is slower than B by more than this, beyond doubt (1%%)",
    )


def add_pair(parser: argparse.ArgumentParser) -> None:
    """A, B and where their lines lie."""
    which = "NAME, NAME@RUN or NAME@SOURCE (first letters of the source's hash)"
    parser.add_argument("a", metavar="A", help=which)
    parser.add_argument("b", metavar="B", help=which)
    query.add_results(parser)


def percent(text: str) -> float:
    """`1%`, `1` or `0.5%` → 0.01, 0.01, 0.005."""
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage; write 1%") from None
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 0% and 100%")
    return value


def run(args: argparse.Namespace) -> int:
    """0 compared; 1, by --fail-on-regression, A is slower or wrong; 2 no such entry; 3 no pair."""
    heads, _ = query.heads(args, args.a, args.b, *args.more)
    found = {b: find_pairs(args.a, b, heads) for b in (args.b, *args.more)}
    if args.json:
        documents = [_document(args.a, b, pairs) for b, pairs in found.items()]
        print(dumps({"a": args.a, "against": documents} if args.more else documents[0]))
    elif len(found) == 1:
        print("\n".join(_lines(args.a, args.b, found[args.b])))
    else:
        print("\n".join(_lines_of_many(args.a, found)))
    mine = {line: s for pairs in found.values() for line, s in unpassed(args.a, pairs, heads)}
    rivals = (unpassed(b, pairs, heads, of_b=True) for b, pairs in found.items())
    beside = [line for each in rivals for line, _ in each]
    if mine or beside:
        said = "; ".join([*mine, *beside])
        print(f"left out: {said}", file=sys.stderr if args.json else sys.stdout)
    codes = [_regression(args, b, pairs) for b, pairs in found.items()]
    wrong = args.fail_on_regression is not None and not BLAMELESS.issuperset(mine.values())
    return Exit.SUBMISSION_FAILED if wrong else max(codes)


def unpassed(
    name: str, pairs: Sequence[Pair], heads: list[Head], *, of_b: bool = False
) -> Iterator[tuple[str, Status]]:
    """Where `name`, on the board of these pairs, did not pass by its newest verdict or source."""
    rows = [pair.b if of_b else pair.a for pair in pairs]
    now = [h for h in newest(_named(name, heads)) if _place(h)[:3] == _place(rows[0])[:3]]
    for head in now:
        if (status := Status(head.status)) is not Status.PASSED:
            yield f"{sanitize(name, 80)} is {status.value} on {sanitize(head.config, 80)}", status
    sources = {head.source_sha256 for head in now}
    if older := ", ".join(row.config for row in rows if row.source_sha256 not in sources):
        said = f"the newest source of {sanitize(name, 80)} has no time on {older}"
        yield f"{said}: that is an older one's", Status.PASSED


def _regression(args: argparse.Namespace, b: str, pairs: Sequence[Pair]) -> int:
    """The exit code of one comparison; without --fail-on-regression nothing is one."""
    if (limit := args.fail_on_regression) is None:
        return Exit.OK
    worse = [pair.a.config for pair in pairs if is_regression(pair.ratio, limit)]
    worse += ["geomean"] if is_regression(geomean(pairs), limit) else []
    if worse and not args.json:
        against = f" against {sanitize(b, 80)}" if args.more else ""
        print(f"regression beyond {limit:.1%}{against} on {', '.join(worse)}")
    return Exit.SUBMISSION_FAILED if worse else Exit.OK


def _lines_of_many(a: str, found: Mapping[str, Sequence[Pair]]) -> list[str]:
    """One line for each whom `a` is held against; a star: not side by side."""
    every = [pair for pairs in found.values() for pair in pairs]
    boards = {(pairs[0].a.gpu, pairs[0].a.suite) for pairs in found.values()}
    configs = list(dict.fromkeys(pair.a.config for pair in every))
    rows = [[f"{sanitize(a, 80)} against", *configs, "geomean [95 %]", ""]]
    for b, pairs in found.items():
        on = {p.a.config: f"{times(p.ratio)}{'' if p.paired else '*'}" for p in pairs}
        overall = geomean(pairs)
        cells = [on.get(config, "–") for config in configs]
        rows.append([sanitize(b, 80), *cells, times(overall), words(overall)])
    lines = [" and ".join(f"{sanitize(gpu)} · {suite}" for gpu, suite in sorted(boards))]
    lines.append(query.table(rows))
    if any(not pair.paired for pair in every):
        lines += ["* in different runs, compared through their baseline: wider than side by side"]
    lines += _unheld(every)
    first = sanitize(next(iter(found)), 80)
    return [*lines, f"next: python run.py compare {sanitize(a, 80)} {first}"]


def is_regression(ratio: Interval, limit: float) -> bool:
    """Slower by more than `limit`, and surely slower at all."""
    return ratio.value < 1 - limit and ratio.high < 1


def find_pairs(a: str, b: str, heads: list[Head]) -> list[Pair]:
    """The newest lines of both on every config both passed, of one GPU, suite and protocol."""
    mine, theirs = _named(a, heads), _named(b, heads)
    if not (pairs := _best(mine, theirs, heads)):
        said = f"'{a}' and '{b}' passed no config in common on one GPU, suite and protocol"
        kinds = {h.entry: Kind(h.kind) for h in (mine[0], theirs[0])}
        raise UnavailableError(said, side_by_side(kinds, mine[0].suite))
    return pairs


def _named(name: str, heads: list[Head]) -> list[Head]:
    entry, _, which = name.partition("@")
    mine = query.of_entry(heads, entry)
    meant = query.begun(which, (word for h in mine for word in (h.run, h.source_sha256)))
    if which and len(meant) != 1:
        begun = f"{len(meant)} runs or sources begin" if meant else "no run or source begins"
        runs = ", ".join(sorted(meant or {h.run for h in mine})[-5:])
        raise UsageError(f"'{name}': {begun} with '{which}'", f"runs of {entry}: {runs}")
    return [h for h in mine if not which or meant & {h.run, h.source_sha256}]


def _best(mine: list[Head], theirs: list[Head], among: list[Head]) -> list[Pair]:
    """Runs that hold the newest sources of both, before the newest of each; GPUs and most first."""
    sources = {of_source(h) for h in newest([*mine, *theirs])}
    mine, theirs = _standing(mine), _standing(theirs)
    shared = {(h.path, h.run) for h in mine} & {(h.path, h.run) for h in theirs}
    together = [
        [h for h in side if (h.path, h.run) in shared and of_source(h) in sources]
        for side in (mine, theirs)
    ]
    for left, right in (together, (mine, theirs)):
        boards = {_place(h)[:3] for h in left}
        each = (_on_board([_passed(s, board) for s in (left, right)], among) for board in boards)
        if best := max(each, key=_weight, default=[]):
            return best
    return []


def _standing(heads: list[Head]) -> list[Head]:
    """Without what the newest verdict did not pass: an older time is no answer there."""
    failed = {_place(h) for h in newest(heads) if h.status != Status.PASSED.value}
    return [h for h in heads if _place(h) not in failed]


def _place(line: Head | Result) -> tuple[str, str, int, str, str]:
    """Its board, three words, and its place there."""
    return line.gpu, line.suite_sha256, line.protocol, line.entry, line.config


def _weight(pairs: list[Pair]) -> tuple[object, ...]:
    gpu = bool(pairs) and pairs[0].a.machine.has_gpu
    return (len(pairs), gpu, max((pair.a.date for pair in pairs), default=""))


def _passed(heads: list[Head], board: tuple[str, str, int]) -> dict[str, Head]:
    on_board = [h for h in heads if _place(h)[:3] == board and not is_hidden(h.config)]
    return {h.config: h for h in newest(h for h in on_board if h.status == Status.PASSED.value)}


def _on_board(sides: list[dict[str, Head]], among: list[Head]) -> list[Pair]:
    pairs = []
    for config in sorted(sides[0].keys() & sides[1].keys()):
        (a, b), _ = query.read([side[config] for side in sides], among)
        ratio = direct_on(a, b)
        pair = Pair(a, b, ratio, paired=True) if ratio else through_baseline(a, b)
        pairs += [pair] if pair else []
    return sorted(pairs, key=lambda p: (p.a.case.headdim, p.a.case.seqlen))


def through_baseline(a: Result, b: Result) -> Pair | None:
    """Both of runs of their own, where one baseline ran in both."""
    if not (a.speedup and b.speedup and a.speedup.against == b.speedup.against):
        return None
    then = interval_of(b.speedup)
    if a.entry == b.entry:  # one's own noise hides no loss
        then = stats.standard(then)
    return Pair(a, b, stats.quotient(interval_of(a.speedup), then), paired=False)


def _lines(a: str, b: str, pairs: Sequence[Pair]) -> list[str]:
    a, b, overall = sanitize(a, 80), sanitize(b, 80), geomean(pairs)
    rows = [["config", f"{a} ms", f"{b} ms", f"{a} against {b} [95 %]", ""]]
    for p in pairs:
        both = (milliseconds(each.latency_ms) for each in (p.a, p.b))
        rows.append([p.a.config, *both, times(p.ratio), words(p.ratio)])
    rows.append(["geomean", "", "", times(overall), words(overall)])
    again = side_by_side({r.entry: r.kind for r in (pairs[0].a, pairs[0].b)}, pairs[0].a.suite)
    lines = [f"{sanitize(pairs[0].a.gpu)} · {pairs[0].a.suite}", query.table(rows)]
    lines += [*_lasting_lines(a, b, pairs), *_unheld(pairs)]
    if not all(pair.paired for pair in pairs):
        told = (pair.a.speedup for pair in pairs if not pair.paired)
        against = ", ".join(dict.fromkeys(speedup.against for speedup in told if speedup))
        lines += [f"in different runs, compared through {against}: wider than side by side"]
        if not all(pair.one_card for pair in pairs):
            lines.append("on two cards, which differ by up to 2.5 %: that is in the intervals")
        return [*lines, f"next: {again}"]
    if overall.holds(1.0):
        blocks = min(pair.a.blocks for pair in pairs)
        if (more := stats.blocks_to_separate(overall, blocks)) is None:
            return [*lines, "no practical number of blocks would tell them apart"]
        lines.append(f"about {more} more blocks would tell them apart")
        return [*lines, f"next: {again} --blocks {blocks + more}"]
    return [*lines, typed(f"next: python run.py explain {a} {b}")]


def _lasting_lines(a: str, b: str, pairs: Sequence[Pair]) -> list[str]:
    """The stretches of both, where both have one: whoever ties in bursts may differ in energy."""
    rows = []
    for pair in pairs:
        speed, energy = speed_ratio(pair.a, pair.b), energy_ratio(pair.a, pair.b)
        if speed is None:
            continue
        each = [
            f"{milliseconds(stretch.latency_ms)} ms, {number(stretch.pj_per_flop, 2)} pJ/FLOP"
            for stretch in (lasting(pair.a), lasting(pair.b))
            if stretch
        ]
        joules = [f"{energy.value:.3f}×", energy_words(energy)] if energy else ["–", ""]
        rows.append([pair.a.config, *each, f"{speed.value:.3f}×", words(speed), *joules])
    if not rows:
        return []
    return [query.table([["lasting", a, b, f"{a} against {b}", "", "energy", ""], *rows])]


def _unheld(pairs: Sequence[Pair]) -> list[str]:
    """Whose rows were not judged or are on no board, and what that means."""
    rows = [row for pair in pairs for row in (pair.a, pair.b)]
    told = {(r.entry, UNHELD.get(r.held) or unfit(r).removeprefix(f"{r.config}: ")) for r in rows}
    return [f"{name}{DOUBT} {sanitize(why)}" for name, why in sorted(told) if why]


def _document(a: str, b: str, pairs: Sequence[Pair]) -> dict[str, object]:
    def as_json(ratio: Interval) -> dict[str, object]:
        return asdict(ratio) | {"words": words(ratio)}

    def lasts(pair: Pair) -> dict[str, object]:
        speed, energy = speed_ratio(pair.a, pair.b), energy_ratio(pair.a, pair.b)
        if speed is None:
            return {}
        spent = energy and {**as_json(energy), "words": energy_words(energy)}
        return {"lasting": as_json(speed), "energy": spent}

    configs = {p.a.config: {**as_json(p.ratio), "paired": p.paired, **lasts(p)} for p in pairs}
    return {
        "a": a,
        "b": b,
        "gpu": pairs[0].a.gpu,
        "configs": configs,
        "geomean": as_json(geomean(pairs)),
        "not_judged": _unheld(pairs),
    }
