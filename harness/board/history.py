"""One point per run of an entry: how its speed-up moved over time, and where it made a step."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from harness.board.rank import doubtful, interval_of
from harness.board.record import Head
from harness.measure import stats
from harness.measure.stats import Interval
from harness.schema import Status, is_hidden


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one entry on one board."""

    entry: str
    board: tuple[str, str, str, int]  # gpu, suite, suite hash, protocol
    date: str
    run: str
    source: str
    speedup: Interval | None
    against: str  # whom that is over; "" without one
    configs: tuple[str, ...]
    failed: str
    doubtful: bool = False
    since: str = ""  # what changed since the point before on its board


def history(heads: Iterable[Head]) -> list[Point]:
    """Points in order of time; the speed-up is the geometric mean over the configs of the run."""
    runs: dict[tuple[object, ...], dict[str, Head]] = {}  # of a file
    for head in (h for h in heads if not is_hidden(h.config)):
        key = (head.entry, head.gpu, head.suite_sha256, head.protocol, head.run, head.path)
        runs.setdefault(key, {})[head.config] = head
    points = list(dict.fromkeys(_point(list(lines.values())) for lines in runs.values()))
    points.sort(key=lambda p: (p.entry, p.board, p.date, p.run))
    before = [None, *points]
    return [replace(now, since=_step(was, now)) for was, now in zip(before, points, strict=False)]


def _point(lines: list[Head]) -> Point:
    failed = [h for h in lines if h.status != Status.PASSED.value]
    first, speedups = lines[0], [h.speedup for h in lines if h.speedup]
    against = {one.against for one in speedups}
    whole = not failed and len(speedups) == len(lines) and len(against) == 1
    return Point(
        entry=first.entry,
        board=(first.gpu, first.suite, first.suite_sha256, first.protocol),
        date=first.date,
        run=first.run,
        source=first.source_sha256,
        speedup=stats.geomean(list(map(interval_of, speedups))) if whole else None,
        against=against.pop() if whole else "",
        configs=tuple(sorted(h.config for h in lines)),
        failed="; ".join(f"{h.config}: {h.status.value}" for h in failed),
        doubtful=any(h.speedup and doubtful(h) for h in lines),
    )


def document(points: Iterable[Point]) -> list[dict[str, object]]:
    """The points as JSON has them."""
    names = ("gpu", "suite", "suite_sha256", "protocol")
    each = ((asdict(point), dict(zip(names, point.board, strict=True))) for point in points)
    told = ({**fields, "configs": len(fields["configs"]), **board} for fields, board in each)
    return [{k: v for k, v in fields.items() if k != "board"} for fields in told]


def _step(before: Point | None, now: Point) -> str:
    """What changed since the point before: its source, and whether its speed-up is told apart."""
    if before is None or (before.entry, before.board) != (now.entry, now.board):
        return "first"
    parts = ["new source"] if before.source != now.source else []
    alike = (before.configs, before.against) == (now.configs, now.against)
    if before.speedup and now.speedup and alike:
        change = stats.quotient(now.speedup, stats.standard(before.speedup), one_card=False)
        parts += [] if change.holds(1.0) else [words(change)]
    return ", ".join(parts)


def words(ratio: Interval) -> str:
    """`faster by 4.2 %`, `slower by 1.0 %`, `not told apart`."""
    if ratio.holds(1.0):
        return "not told apart"
    return f"{'faster' if ratio.value > 1 else 'slower'} by {abs(ratio.value - 1):.1%}"
