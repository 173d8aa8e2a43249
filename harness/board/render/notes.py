"""What a reader must know about the samples behind a row, in words.

Heat and clocks move every entrant of a run alike and cancel in the paired score, so they are told
once per config. What is left after dividing by the run's own course is told of each entrant.

What lasts, in words: calls back to back for seconds, beside what bursts told.
"""

import math

from harness.board.rank import Board
from harness.board.render.text import UNHELD, milliseconds, number, sanitize
from harness.board.rivals import same_bits_as
from harness.measure import stats
from harness.measure.stats import Interval
from harness.schema import Kind, Result, Status, Sustained, times_ms

#: How far two stretches of one kernel may lie apart, to each side.
REPEAT_PCT = 2.0


def lasting(result: Result) -> Sustained | None:
    """Its stretch, if it has one with a time."""
    found = result.sustained
    passed = result.status is Status.PASSED and found and found.status is Status.PASSED
    return found if passed else None


def lasting_words(result: Result) -> str:
    """`500.2 TFLOP/s, 1.098 ms over 1821 calls, 1597 MHz, …`; or why not; or nothing."""
    if (found := result.sustained) is None:
        return ""
    if found.status is not Status.PASSED:
        return sanitize(f"no lasting time: {found.status.value} ({found.reason})")
    words = [f"{milliseconds(found.latency_ms)} ms over {found.calls} calls"]
    if result.machine.has_gpu:
        words.insert(0, f"{number(found.tflops, 1)} TFLOP/s")
    if found.clock_mhz:
        words.append(f"{found.clock_mhz:.0f} MHz")
    if found.power_w:
        words.append(f"{found.power_w:.0f} W")
    if found.pj_per_flop:
        words.append(f"{found.pj_per_flop:.3g} pJ/FLOP ± {found.energy_error_pct:.1f} %")
    return ", ".join(words)


def speed_ratio(a: Result, b: Result) -> Interval | None:
    """Lasting time of `b` / lasting time of `a`; None unless both have one."""
    mine, its = lasting(a), lasting(b)
    if not (mine and its and mine.latency_ms and its.latency_ms):
        return None
    return _within(its.latency_ms / mine.latency_ms, REPEAT_PCT)


def energy_ratio(a: Result, b: Result) -> Interval | None:
    """Joules a call of `a` / of `b`: below 1 `a` needs less; None unless both have them."""
    mine, its = lasting(a), lasting(b)
    if not (mine and its and mine.joules_per_call and its.joules_per_call):
        return None
    counters = (mine.energy_error_pct or 0) + (its.energy_error_pct or 0)
    return _within(mine.joules_per_call / its.joules_per_call, REPEAT_PCT + counters)


def energy_words(ratio: Interval) -> str:
    """`5.6 % less energy`, `2.0 % more energy`, `energy not told apart`."""
    if ratio.holds(1.0):
        return "energy not told apart"
    return f"{abs(1 - ratio.value):.1%} {'less' if ratio.value < 1 else 'more'} energy"


def _within(value: float, pct: float) -> stats.Interval:
    return Interval(value, value / (1 + pct / 100), value * (1 + pct / 100))


MOST_RUNS = 3  # named one by one on a board


class Notes:
    """The words for one board; the courses of its runs are worked out once."""

    def __init__(self, board: Board) -> None:
        ratios: dict[tuple[str, str, str], dict[int, list[float]]] = {}
        for result in (r for row in board.rows for r in row.results if r.scored):
            mine = times_ms(result.samples)
            middle = stats.median(list(mine.values()))
            blocks = ratios.setdefault((result.config, result.run, str(result.path)), {})
            for block, time in mine.items():
                blocks.setdefault(block, []).append(math.log(time / middle))
        self._courses = {key: _course(blocks) for key, blocks in ratios.items()}
        told = (r for row in board.rows for r in row.results if r.telemetry)
        self._telemetry = {(r.config, r.run, str(r.path)): _telemetry(r) for r in told}

    def of_machine(self, config: str) -> list[str]:
        """What happened to all entrants of a run at once."""
        runs = sorted(at for at in self._courses if at[0] == config)
        lines = []
        for at in runs:
            found = stats.findings(self._courses[at])
            words = [f"{found['drift']} (cancels in the speed-up)"] if "drift" in found else []
            words += self._telemetry.get(at, [])
            if words:
                name = f"run {at[1]}: " if len(runs) > 1 else ""
                lines.append(f"{name}for all entrants {'; '.join(words)}")
        if len(lines) <= MOST_RUNS:
            return lines
        return [f"{len(lines)} of {len(runs)} runs were disturbed as a whole"]

    def of_entry(self, result: Result) -> list[str]:
        """What happened to one entrant and to nobody else."""
        moved = self._courses.get((result.config, result.run, str(result.path)), {})
        mine = times_ms(result.samples)
        own = {block: time / moved.get(block, 1.0) for block, time in mine.items()}
        found = list(stats.findings(own).values())
        if result.held in UNHELD and result.scored:
            found.insert(0, UNHELD[result.held])
        if late := sum(sample.late for sample in result.samples):
            found.append(f"{late} disturbed bursts not scored")
        if result.deterministic is False:
            found.append("not bitwise repeatable: the same inputs gave other bits")
        if summed := ", ".join(f"{name} in {kind}" for name, kind in result.accumulates.items()):
            found.append(f"sums {summed}, by its manifest")
        library = same_bits_as(result.likeness, result.case.dtype)
        if library and result.kind is Kind.SUBMISSION:
            found.append(f"its timed results are {library}'s, bit for bit: shown with libraries")
        if result.sustained and result.sustained.status is not Status.PASSED:
            found.append(lasting_words(result))
        if result.stopping:
            found.append(result.stopping.why)
        return found


def _course(blocks: dict[int, list[float]]) -> dict[int, float]:
    """Block → how slow it was for everybody; 1 is usual. One entrant alone is no everybody."""
    told = ((block, logs) for block, logs in sorted(blocks.items()) if len(logs) > 1)
    return {block: math.exp(stats.median(logs)) for block, logs in told}


def _telemetry(result: Result) -> list[str]:
    """What NVML said while the config was timed; one reading a block, the same for everybody."""
    readings = len(result.telemetry)
    reasons = sorted({reason for block in result.telemetry for reason in block.throttle})
    found = []
    for reason in reasons:
        times = sum(reason in block.throttle for block in result.telemetry)
        found.append(f"clocks held down by {reason} in {times} of {readings} readings")
    if foreign := sum(block.foreign_pids > 0 for block in result.telemetry):
        found.append(f"another process on the GPU in {foreign} of {readings} readings")
    return found


def conditions_of(result: Result) -> list[str]:
    """Clock, drift, what lasts, the rule of the run, in words; nothing where nothing was read."""
    found = []
    if result.clock_mhz is not None:
        share = f", {result.clock_pct:.1f} % of the peak at that clock" if result.clock_pct else ""
        found.append(f"SM clock {result.clock_mhz:.0f} MHz{share}")
    if result.drift_pct is not None:
        found.append(f"the trusted baseline drifted by {result.drift_pct:+.1f} % from start to end")
    if lasting(result):
        found.append(f"lasting: {lasting_words(result)}")
    if result.stopping:
        rule = result.stopping.rule
        found.append(f"rule of the run: {rule}; intervals hold at all of its {result.looks} looks")
    return found
