"""Results → Leaderboard. Pure: no clock, no files, no printing.

Rows are compared only under the same GPU, the same suite (by hash) and the same protocol. Of every
entrant the newest source counts, and of it the newest verdict on each config. Who did not pass
every config is listed below the ranked rows with the reason; CPU results are never ranked. A step
of a ladder (`NAME/steps/…`) shows how NAME came to be: it has a score and takes no place.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from harness.board import rivals
from harness.board.record import Head, newest, of_run, weight
from harness.board.rivals import NO_GRID, Grid, HiddenLoss, Libraries, direct_on
from harness.measure import stats
from harness.measure.stats import Interval
from harness.measure.stopping import level_of
from harness.schema import MOST_SLACK_PCT, Kind, Result, Speedup, Status, times_ms

MOST_COLUMNS = 8
#: So many of a place, its best aside, must be tied with who shares it: the narrowest tell most.
MOST_PEERS = 7
#: The baseline everything is a multiple of, where it ran.
HEADLINE = "sdpa_cudnn"

#: How a row was held, the weakest first. What is not judged shows it wherever its place is shown.
HELD = ("cooperative", "unlocked", "judged")

#: Each ranked among themselves, in this order.
GROUPS = ("exact", "approximate", "library")
#: Endings that say that an output or a time was wrong, not that it was late or too large.
WRONG = frozenset(
    {Status.INCORRECT, Status.NONFINITE, Status.BAD_OUTPUT, Status.INPUT_MUTATED}
    | {Status.TIME_CLAIM_REJECTED, Status.SLOWER_ALONE, Status.LEFT_WORK_RUNNING}
)
ABSENT = (Status.UNAVAILABLE, Status.UNSUPPORTED)  # of a baseline that is not there for a shape


@dataclass(frozen=True, slots=True)
class Row:
    """One entrant on one board. `rank` is None where it cannot be ranked; `why` then says so."""

    entry: str
    results: tuple[Result, ...]  # in the order of the board's configs
    hidden: tuple[Result, ...] = ()  # on shapes that its runs drew from their secrets
    unasked: tuple[int, ...] = ()  # headdims of these on which not each run of its results has one
    speedup: Interval | None = None  # geometric mean over the configs
    rank: int | None = None
    tie: bool = False
    why: str = ""
    grid: Grid = NO_GRID  # of many configs: each beside the best library
    loss: HiddenLoss | None = None  # beside libraries, on hidden shapes

    @property
    def pick(self) -> Result:
        """Any of its results, for what all of them share: kind, language, author, source."""
        return self.results[0]

    @property
    def _timed(self) -> tuple[Result, ...]:
        """Official results, and hidden ones that passed: which shapes these are is not told."""
        return (*self.results, *(r for r in self.hidden if r.status is Status.PASSED))

    @property
    def exact(self) -> bool:
        """Whether every shape met the numerics limits, not only the contract; hidden ones too."""
        return all(result.numerics_class == "exact" for result in self._timed)

    @property
    def repeatable(self) -> bool:
        """Whether the same inputs gave the same bits on every config, asked twice on each."""
        return all(result.deterministic for result in self.results)

    @property
    def borrowed(self) -> bool:
        """A submission that launched a library's attention or matrix products on some config."""
        if self.pick.kind is not Kind.SUBMISSION:
            return False
        classes = {rivals.classify(r.kernels, r.likeness, r.case.dtype) for r in self._timed}
        return bool(classes & {rivals.LIBRARY, rivals.MIXED})

    @property
    def group(self) -> str:
        """Among whom it is scored: exact, approximate, library or step; empty without a score."""
        if self.speedup is None:
            return ""
        if self.champion:
            return "step"
        return "library" if self.borrowed else "exact" if self.exact else "approximate"

    @property
    def champion(self) -> str:
        """The entry whose step this is; an empty string for an entry of its own."""
        return self.entry.rpartition("/steps/")[0]

    @property
    def date(self) -> str:
        """Day of the newest of its results."""
        return max(result.date for result in self.results)[:10]

    @property
    def integrity(self) -> str:
        """The weakest level any of its results was taken under."""
        return min((HELD.index(r.held), r.integrity) for r in self.results)[1]

    def on(self, config: str) -> Result | None:
        """Its result on one config."""
        return next((result for result in self.results if result.config == config), None)


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU, one suite, one protocol."""

    gpu: str
    suite: str
    suite_sha256: str
    protocol: int
    configs: tuple[str, ...]
    headline: str
    exact: tuple[Row, ...]
    approximate: tuple[Row, ...]
    library: tuple[Row, ...]
    steps: tuple[Row, ...]  # of ladders: scored, without a place
    unranked: tuple[Row, ...]

    @property
    def is_grid(self) -> bool:
        """Whether it has so many configs that they are shown as a map and not as columns."""
        return len(self.configs) > MOST_COLUMNS

    @property
    def is_cpu(self) -> bool:
        """Boards of a CPU say who passed, never who is faster."""
        return all(not row.pick.machine.has_gpu for row in self.rows)

    @property
    def problem(self) -> str:
        """What is computed: a name of harness/problems/."""
        return self.rows[0].pick.problem

    @property
    def ranked(self) -> tuple[Row, ...]:
        """Exact rows, then approximate ones, then what libraries did."""
        return (*self.exact, *self.approximate, *self.library)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row: the ranked ones, best first, then steps of ladders, then who has no score."""
        return (*self.ranked, *self.steps, *self.unranked)

    def any_on(self, config: str) -> Result:
        """Somebody's result, for what all of them share: shape, problem, machine."""
        return next(filter(None, (row.on(config) for row in self.rows)))


#: The paired ratio of two rows from a run that holds both, if there is one.
Beside = Callable[[Row, Row, Sequence[str]], Interval | None]


def nowhere(a: Row, b: Row, configs: Sequence[str]) -> Interval | None:
    """No other run holds both."""


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Every board, GPUs first, the newest protocol of a suite before older ones."""

    boards: tuple[Board, ...]
    bad_lines: int = 0
    libraries: Libraries = field(default=Libraries(()), compare=False, repr=False)
    beside: Beside = field(default=nowhere, compare=False, repr=False)

    @property
    def main(self) -> Board | None:
        """The one seen first, no grid: of the newest protocol the one that ranks most rows."""

        def weight(b: Board) -> tuple[object, ...]:
            return (not b.is_cpu, b.protocol, not b.is_grid, len(b.ranked))

        return max(self.boards, key=weight, default=None)


# --------------------------------------------------------------------------- the board

#: What one submission's source was told in one run (record.of_run), by config.
Runs = dict[tuple[object, ...], dict[str, Result]]


def leaderboard(
    results: Iterable[Result],
    bad_lines: int = 0,
    beside: Beside = nowhere,
    libraries: Libraries | None = None,
) -> Leaderboard:
    """Every board that `results` hold; the same results in any order give the same boards.

    `beside` is asked for two rows of different runs: an older run may have measured both.
    `libraries`: who passed beside a result; those among `results` if not given.
    """
    # a time on a hidden shape needs the secret that the shape follows from
    results = [r for r in results if not r.case.hidden or r.secret or r.status is not Status.PASSED]
    libraries = libraries or Libraries(results)
    groups: dict[tuple[str, str, int], list[Result]] = {}
    for result in sorted(newest(results), key=lambda r: (r.entry, r.config, r.date, r.run)):
        groups.setdefault((result.gpu, result.suite_sha256, result.protocol), []).append(result)
    asked = (group for group in groups.values() if any(not r.case.hidden for r in group))
    runs: Runs = {}
    for result in sorted((r for r in results if r.kind is Kind.SUBMISSION), key=weight):
        runs.setdefault(of_run(result), {})[result.config] = result  # in however many files
    boards = [_board(group, runs, beside, libraries) for group in asked]
    boards.sort(key=lambda b: (b.is_cpu, b.gpu, b.suite, -b.protocol, b.suite_sha256))
    return Leaderboard(tuple(boards), bad_lines, libraries, beside)


def _board(group: Sequence[Result], runs: Runs, beside: Beside, libraries: Libraries) -> Board:
    first, drawn = group[0], [r for r in group if r.case.hidden]
    group = [result for result in group if not result.case.hidden]
    # without configs that were interrupted for all: nobody was measured, nobody misses there
    left = {r.config for r in group if r.status is not Status.INTERRUPTED}
    group = [r for r in group if r.config in left] or group
    cases = {r.config: r.case for r in reversed(group)}
    sizes = {n: (c.headdim, c.seqlen, c.batch, c.heads, n) for n, c in cases.items()}
    configs = tuple(sorted(sizes, key=sizes.__getitem__))
    headline = _headline(group)
    by_entry: dict[str, list[Result]] = {}
    for result in sorted(group, key=lambda r: configs.index(r.config)):
        by_entry.setdefault(result.entry, []).append(result)
    rows = [_drawn(Row(n, tuple(mine)), drawn, runs, libraries) for n, mine in by_entry.items()]
    grid = len(configs) > MOST_COLUMNS
    rows = [_beside_libraries(_row(r, configs, headline), grid, runs, libraries) for r in rows]
    places = sorted((-row.speedup.value, row.entry) for row in rows if row.speedup)
    by_name = {row.entry: row for row in rows}
    scored = [by_name[name] for _, name in places]
    alike = {name: [row for row in scored if row.group == name] for name in GROUPS}
    return Board(
        gpu=first.gpu,
        suite=max(group, key=lambda r: (r.date, r.run)).suite,
        suite_sha256=first.suite_sha256,
        protocol=first.protocol,
        configs=configs,
        headline=headline,
        **{name: _ranked(alike[name], configs, beside) for name in GROUPS},
        steps=tuple(row for row in scored if row.champion),
        unranked=tuple(sorted((r for r in rows if not r.speedup), key=lambda r: r.entry)),
    )


def _headline(group: Sequence[Result]) -> str:
    """That of most rows, of submissions if any is scored; of as many HEADLINE, then the first."""
    told = [(r.kind is Kind.SUBMISSION, r.speedup.against) for r in group if r.speedup]
    named = Counter(name for own, name in told if own) or Counter(name for _, name in told)
    first = {r.speedup.against: r.date for r in reversed(group) if r.speedup}
    return min(named, key=lambda name: (-named[name], name != HEADLINE, first[name]), default="")


def _row(row: Row, configs: Sequence[str], headline: str) -> Row:
    """The same with its speed-up, or with the reason why it has none."""
    # a submission that is wrong on a shape it claims has no score
    wrong = (r for r in row.hidden if r.kind is Kind.SUBMISSION and r.status in WRONG)
    hidden = next((f"{r.config}: {r.status.value} ({r.reason})" for r in wrong), "")
    if why := _obstacle(row.entry, row.results, configs, headline) or hidden:
        return replace(row, why=why)
    ratios = [interval_of(r.speedup) for r in row.results if r.speedup and row.entry != headline]
    return replace(row, speedup=stats.geomean(ratios or [Interval(1, 1, 1)]))


def unasked(official: Iterable[Result], hidden: Iterable[Result]) -> set[int]:
    """Headdims on which a run of `official` has none of `hidden`: no other run speaks for it."""
    asked = {(of_run(r), r.case.headdim) for r in hidden}
    return {r.case.headdim for r in official if (of_run(r), r.case.headdim) not in asked}


def _drawn(row: Row, drawn: Sequence[Result], runs: Runs, libraries: Libraries) -> Row:
    """The same with its newest rows on hidden shapes, and those of the runs of its results."""
    ran = {(of_run(r), r.case.headdim) for r in row.results}
    near = [r for run, d in ran for r in runs.get(run, {}).values() if r.case.headdim == d]
    mine = [r for r in (*drawn, *near) if r.entry == row.entry and r.case.hidden]
    many = Counter(r.config for r in drawn if r.kind is Kind.BASELINE and r.status not in ABSENT)
    held = [r for r in mine if many[r.config] < 2 or len(rivals.beside(r, near, libraries)) > 2]
    left = unasked(row.results, held) & {r.case.headdim for r in drawn}
    once = {(r.config, r.date, r.run): r for r in mine}
    return replace(row, hidden=tuple(once[k] for k in sorted(once)), unasked=tuple(sorted(left)))


def _beside_libraries(row: Row, grid: bool, runs: Runs, libraries: Libraries) -> Row:
    """The same with what runs say of it beside libraries, if it is a submission's."""
    if row.pick.kind is not Kind.SUBMISSION:
        return row
    cells = [rivals.cell_of(result, libraries) for result in row.results if grid]
    ran = dict.fromkeys(map(of_run, row.hidden))  # of these none makes up for another
    near = [r for run in ran for r in runs.get(run, {}).values() if not r.case.hidden]
    alone = ([r for r in row.hidden if of_run(r) == run] for run in ran if len(ran) > 1)
    losses = [rivals.hidden_loss([*near, *some], libraries) for some in (row.hidden, *alone)]
    told = (x for x in losses if x and x.told)
    loss = max(told, key=lambda x: x.ratio.value, default=None if row.unasked else losses[0])
    return replace(row, grid=Grid(tuple(filter(None, cells)), len(row.results)), loss=loss)


def interval_of(told: Speedup) -> Interval:
    """A recorded speed-up, to reckon with."""
    return Interval(told.value, told.low, told.high)


def _obstacle(entry: str, results: Sequence[Result], configs: Sequence[str], headline: str) -> str:
    """Why an entrant has no score, or an empty string."""
    for result in results:
        if result.status is not Status.PASSED:
            why = f" ({result.reason})" if result.reason else ""
            return f"{result.config}: {result.status.value}{why}"
    if missing := [name for name in configs if all(r.config != name for r in results)]:
        return f"not run on {', '.join(missing)}"
    lone = (r for r in results if headline not in (entry, r.speedup and r.speedup.against))
    beside = f"not timed beside {headline or 'a baseline'}"
    return next(filter(None, [*map(unfit, results), *(f"{r.config}: {beside}" for r in lone)]), "")


def unfit(result: Result) -> str:
    """Why a time that passed is compared with no other, or an empty string."""
    if not result.machine.has_gpu:
        return "a CPU's times are never ranked"
    if result.integrity.endswith("/0"):
        return f"{result.config}: measured without a sandbox, --sandbox 1 puts one up"
    if _too_loose(result) and result.slack:
        told = f"could be told {result.slack.mean_pct:.1f} % short unseen"
        return f"{result.config}: its time {told}, at most {MOST_SLACK_PCT:g} % is ranked"
    return ""


def doubtful(line: Head | Result) -> bool:
    """Whether its figures are shown with a mark: not judged, or a GPU's that no board ranks."""
    held, _, level = line.integrity.partition("/")
    return held != HELD[-1] or level == "0" or _too_loose(line)


def _too_loose(line: Head | Result) -> bool:
    """Whether its two clocks were too far apart; of a cooperative row nobody checked."""
    told = None if line.integrity.startswith(HELD[0]) else line.slack
    return told is not None and told.mean_pct > MOST_SLACK_PCT


# --------------------------------------------------------------------------- ties


def _ranked(rows: Sequence[Row], configs: Sequence[str], beside: Beside) -> tuple[Row, ...]:
    """Rows, best first, in groups: who is tied with all of the group before shares its rank."""
    groups: list[list[Row]] = [[]]
    asked: list[Row] = []  # of the last group: its best and the narrowest of the others
    for row in rows:
        if any(_faster(each, row, configs, beside) for each in asked):
            groups.append([])
            asked = []
        groups[-1].append(row)
        bisect.insort(asked, row, min(len(asked), 1), key=_width)
        del asked[1 + MOST_PEERS :]
    ranked: list[Row] = []
    for group in groups:
        ranked += [replace(row, rank=len(ranked) + 1, tie=len(group) > 1) for row in group]
    return tuple(ranked)


def _width(row: Row) -> float:
    return row.speedup.high / row.speedup.low if row.speedup else math.inf


def _faster(a: Row, b: Row, configs: Sequence[str], beside: Beside) -> bool:
    """Whether `a`, who is ahead of `b`, is faster beyond doubt; else they are tied.

    By what they have now, or by a run of both, an older one too: it takes places and lends none.
    """
    assert a.speedup is not None
    assert b.speedup is not None
    one_card = len({result.machine.uuid for result in (*a.results, *b.results)}) == 1
    if stats.quotient(a.speedup, b.speedup, one_card=one_card).low > 1:
        return True
    paired = direct(a, b, configs) or beside(a, b, configs)
    return paired is not None and paired.low > 1


def direct(a: Row, b: Row, configs: Sequence[str]) -> Interval | None:
    """How many times faster `a` is than `b`, where both ran side by side on every config."""
    return stats.geomean_of_all([direct_on(a.on(config), b.on(config)) for config in configs])


def by_todays_rule(result: Result, base: Result | None) -> Result:
    """The same, its speed-up's interval anew from the samples of both if an older rule made it.

    `base`: its baseline's row of the same run and config; without it the interval stays as
    recorded.
    """
    told = result.speedup
    if base is None or told is None or told.rule == stats.INTERVAL_RULE:
        return result
    times = times_ms(base.samples), times_ms(result.samples)
    if (found := stats.speedup(*times, level_of(result.looks))) is None:
        return result
    speedup = told.model_copy(update=asdict(found) | {"rule": stats.INTERVAL_RULE})
    return result.model_copy(update={"speedup": speedup})
