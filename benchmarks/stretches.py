"""What lasts, by the records: its ratios beside those of bare events, and who would be called uneven.

    python benchmarks/stretches.py results [FOLDER ...]

Ratios: of the newest run that has both. Then from the pauses that records hold. Honest: each recorded
stretch, and draws made of them, checked at other moments. Leaping: the same, but so many times the
count stands still for as long as `ring - 1` calls take, then goes on that much further, and by calls
that are never made. Of 2 s: two such stretches, one behind the other.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from harness.board import record  # noqa: E402
from harness.judge.stretch import pauses_s  # noqa: E402
from harness.measure.evenness import excesses_ms, leap  # noqa: E402
from harness.schema import Pause, Result  # noqa: E402

DRAWS, RING = 400, 10
SWITCH_MS = 0.6  # what a check costs the calls beside it: more or less, by up to SPREAD of it
SPREAD = 0.3
GAINS_PCT, LEAPS = (1, 3, 5), (1, 2, 3, 5, 10, 20)
FEWEST = 4  # pauses of a stretch that draws are made of
Pauses = tuple[Pause, ...]
#: TFLOP/s of each kernel alone for 1.5 s, the last two thirds, by CUDA events and without a judge:
#: three times in random order in one process on one H200, 2026-11-22.
SHAPES = ("hdim64_seq4k", "hdim128_seq8k", "hdim256_seq16k")
BARE = {
    "cuda_hopper": (500, 656, 681),
    "gluon_champion": (481, 627, 668),
    "flash_attn_3": (416, 592, 660),
    "flash_attn_4": (407, 561, 657),
    "sdpa_cudnn": (386, 504, 561),
    "sdpa_flash": (269, 302, 280),
}
FIRST = "cuda_hopper"


class Course:
    """Recorded stretches as calls and cycles over time, in ms; straight between two checks."""

    def __init__(self, pauses: Pauses) -> None:
        spent_ms = [max(SWITCH_MS, pause.spent_ms - SWITCH_MS) for pause in pauses]
        cycles = [ms * pause.sm_mhz for ms, pause in zip(spent_ms, pauses, strict=True)]
        self.at_ms = [0.0, *itertools.accumulate(spent_ms)]
        self.calls = [0.0, *itertools.accumulate(float(pause.calls) for pause in pauses)]
        self.cycles = [0.0, *itertools.accumulate(cycles)]
        self.call_ms = self.at_ms[-1] / self.calls[-1]

    def at(self, what: list[float], ms: float) -> float:
        """`what` at a moment."""
        n = min(max(1, bisect_left(self.at_ms, ms)), len(self.at_ms) - 1)
        share = (ms - self.at_ms[n - 1]) / (self.at_ms[n] - self.at_ms[n - 1])
        return what[n - 1] + share * (what[n] - what[n - 1])

    def checked(self, rng: random.Random, leaps_ms: list[float], extra: float) -> Pauses:
        """At new moments; `extra` calls are told beyond those made at each of `leaps_ms`."""
        passed_ms = (1e3 * next_s for next_s in pauses_s(self.at_ms[-1] / 1e3, rng))
        until = itertools.takewhile(lambda ms: ms < self.at_ms[-1], itertools.accumulate(passed_ms))
        moments = [0.0, *until]
        told = [int(self._told(ms, leaps_ms, extra)) for ms in moments]
        cycles = [self.at(self.cycles, ms) for ms in moments]
        found = []
        for n, (a, b) in enumerate(itertools.pairwise(moments)):
            cost_ms = SWITCH_MS * rng.uniform(1 - SPREAD, 1 + SPREAD)
            mhz = (cycles[n + 1] - cycles[n]) / (b - a)
            found.append(Pause(b - a + cost_ms, told[n + 1] - told[n], mhz))
        return tuple(found)

    def _told(self, ms: float, leaps_ms: list[float], extra: float) -> float:
        still_ms = (RING - 1) * self.call_ms
        begun = [at for at in leaps_ms if at <= ms < at + still_ms]
        over = sum(at + still_ms <= ms for at in leaps_ms)
        return self.at(self.calls, begun[0] if begun else ms) + extra * over


def seen(
    courses: list[Course], rng: random.Random, draws: int, gain_pct: float, leaps: int
) -> float:
    """Share of draws in which a leap is seen; so many of them skip `gain_pct` of the calls in all."""
    found = 0
    for _ in range(draws):
        course = rng.choice(courses)
        extra = gain_pct / 100 * course.calls[-1] / leaps if leaps else 0
        each_ms = course.at_ms[-1] / max(1, leaps)
        moments = [each_ms * (n + 0.8 * rng.random()) for n in range(leaps)]
        found += leap(course.checked(rng, moments, extra)) is not None
    return found / draws


def print_ratios(rows: list[Result]) -> None:
    """FIRST over each entry, of the newest run with both; beside it what bare events gave."""
    lasting: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.suite == "fa3" and row.sustained and row.sustained.tflops:
            lasting[row.config, row.entry][row.run] = row.sustained.tflops
    for (shape, entry), its in sorted(lasting.items()):
        first = lasting.get((shape, FIRST), {})
        run = max(its.keys() & first.keys(), default="")
        if entry == FIRST or not run:
            continue
        ratio = first[run] / its[run]
        words = (
            f"{shape:15} {FIRST} {first[run]:.0f} TFLOP/s, {ratio:.3f} x {entry:16} ({run[-6:]})"
        )
        if entry in BARE:
            bare = BARE[FIRST][SHAPES.index(shape)] / BARE[entry][SHAPES.index(shape)]
            words += f", bare {bare:.3f}: {100 * (ratio / bare - 1):+.1f} %"
        print(words)


def main() -> None:
    """Read, draw, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of records")
    each = (record.heads(folder)[0] for folder in parser.parse_args().folders)
    rows = [row for heads in each for row in record.read(heads)[0]]
    print_ratios(rows)
    told = [row for row in rows if row.sustained and len(row.sustained.pauses) > 2]
    stretches = [row.sustained.pauses for row in told if row.sustained]
    for row, pauses in zip(told, stretches, strict=True):
        clocks = [pause.sm_mhz for pause in pauses]
        print(f"{row.run[-6:]} {row.entry:16} {row.config:15} {len(pauses):3} pauses, {min(clocks):.0f} to"
              f" {max(clocks):.0f} MHz, {max(excesses_ms(pauses)):+.1f} ms from a leap")  # fmt: skip
    print(f"{len(stretches)} stretches, {sum(map(bool, map(leap, stretches)))} with a leap")
    whole, rng = [pauses for pauses in stretches if len(pauses) >= FEWEST], random.Random(20)
    for times in (1, 2):
        courses = [Course(pauses * times) for pauses in whole]
        print(
            f"{times} s: honest {100 * seen(courses, rng, 25 * DRAWS, 0, 0):.2f} % of {25 * DRAWS}"
        )
        for gain in GAINS_PCT:
            shares = {leaps: seen(courses, rng, DRAWS, gain, leaps) for leaps in LEAPS}
            words = ", ".join(f"{leaps}: {share:.0%}" for leaps, share in shares.items())
            print(f"  {gain} % faster by so many leaps, seen in: {words}")


if __name__ == "__main__":
    main()
