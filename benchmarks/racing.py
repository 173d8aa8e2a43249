"""Does `--race` find the top 3 of 64 candidates, and for what share of the GPU time?

Without a GPU, a simulation with the harness's own rule and plan (harness/measure/stopping.py, harness/measure/plan.py):

    python benchmarks/racing.py --seeds 200

Noise: what is left of each entry's blocks in a committed record after dividing by the run's common
course, drawn with replacement, config by config. Time: T2 of that record as a function of the latency
(both clocks' gap included), times the turns that a candidate really gets (check, warm-up, audits, timed
blocks); the turns of the baseline and the null kernel are in both sums. Four fields of candidates.
"Same": the three fastest of the race are the three fastest of the full run on the same blocks.

On a GPU, the same question with 64 real entries, PyTorch's flash attention followed by a wait
(benchmarks/known_slowdowns.py; cuDNN would build a plan for every shape in every worker), first all blocks
for all, then a race:

    python benchmarks/racing.py --gpu --candidates 64
    python benchmarks/racing.py --gpu --candidates 64 --on 2,3     # both at once, on two GPUs of one host

Its suite has the official shapes with bursts of 3, because the buffers of 66 workers must fit one GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.known_slowdowns import write_entry  # noqa: E402
from harness.board import record  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.measure import stats, stopping  # noqa: E402
from harness.measure.plan import plan_case  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.schema import Result, Suite, times_ms  # noqa: E402

PLACES = 3
FLASH = "sdpa_flash"
BASE = "base"
CHECK_BURSTS = 1  # the probes' shapes are too small to count

#: Name of a field → how much slower than the best each of n candidates is, as a log-ratio.
FIELDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "wide: up to twice as slow": lambda rng, n: rng.uniform(0, math.log(2), n),
    "as the entries of the record": lambda rng, n: (
        rng.choice(record_ratios(), n) + rng.normal(0, 0.03, n)
    ),
    "close: within 10 %": lambda rng, n: rng.uniform(0, math.log(1.1), n),
    "all but equal: within 0.3 %": lambda rng, n: rng.uniform(0, math.log(1.003), n),
}


@dataclass(frozen=True)
class Noise:
    """One config of the record: what its blocks scatter by, and what a turn costs."""

    config: str
    residuals: np.ndarray  # of log latency, common course taken out
    best_ms: float  # fastest latency
    gap_ms: float  # T2 - T1
    calls: int

    def turn_ms(self, slower: float) -> float:
        """T2 of one burst of a candidate that is e^slower times as slow as the best."""
        return self.gap_ms + self.calls * self.best_ms * math.exp(slower)


def main() -> None:
    """Simulate, or run on the GPU at hand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--gpu", action="store_true", help="64 real entries on the GPU at hand")
    parser.add_argument(
        "--on", default="", metavar="GPU[,GPU]", help="of the full run, of the race"
    )
    args = parser.parse_args()
    if args.gpu:
        on_gpu(args.candidates, args.on.split(","))
        return
    noise = noise_of(best_records())
    suite = load_suite("fa3", ROOT / "configs")
    print(
        f"| field of {args.candidates}, {args.seeds} races each | same top {PLACES} | GPU time (worst) | blocks a candidate |"
    )
    print("|---|---:|---:|---:|")
    for name, field in FIELDS.items():
        races = [one_race(seed, field, args.candidates, noise, suite) for seed in range(args.seeds)]
        same = sum(race.same for race in races)
        share = [race.share for race in races]
        blocks = np.mean([race.mean_blocks for race in races])
        print(
            f"| {name} | {same} of {len(races)} | {np.mean(share):.0%} ({max(share):.0%}) | {blocks:.1f} |",
            flush=True,
        )


# --------------------------------------------------------------------------- the record


@lru_cache(maxsize=1)
def best_records() -> list[Result]:
    """The passed results of the committed H200 run of the official suite with the most entries."""
    results, _ = record.read(record.heads(ROOT / "results" / "nvidia-h200")[0])
    passed = [r for r in results if r.suite == "fa3" and r.latency_ms is not None and r.speedup]
    counts = Counter(r.run for r in passed)
    run = min(counts, key=lambda name: (-counts[name], name))
    return [r for r in passed if r.run == run]


@lru_cache(maxsize=1)
def record_ratios() -> np.ndarray:
    """Log-ratios to the fastest entry, over all entries and configs of the record."""
    found = []
    for noise in noise_of(best_records()):
        of_config = [r for r in best_records() if r.config == noise.config]
        found += [math.log((r.latency_ms or 0) / noise.best_ms) for r in of_config]
    return np.array(found)


def noise_of(results: Sequence[Result]) -> list[Noise]:
    """Residuals and costs, config by config."""
    found = []
    for config in dict.fromkeys(r.config for r in results):
        mine = [r for r in results if r.config == config]
        logs = {r.entry: {b: math.log(t) for b, t in times_ms(r.samples).items()} for r in mine}
        blocks = sorted(set.intersection(*(set(times) for times in logs.values())))
        table = np.array([[times[b] for b in blocks] for times in logs.values()])
        table -= np.median(table, axis=1, keepdims=True)
        table -= np.median(table, axis=0, keepdims=True)
        found.append(
            Noise(
                config,
                table.ravel() * math.sqrt(len(mine) / (len(mine) - 1)),
                min(r.latency_ms or 0 for r in mine),
                stats.median([s.gap_ms for r in mine for s in r.scored]),
                mine[0].case.burst,
            )
        )
    return found


# --------------------------------------------------------------------------- one race


@dataclass(frozen=True)
class Race:
    """What came out of one."""

    same: bool
    share: float
    mean_blocks: float


def one_race(
    seed: int,
    field: Callable[[np.random.Generator, int], np.ndarray],
    count: int,
    noise: Sequence[Noise],
    suite: Suite,
) -> Race:
    """A full run, and a race on the same blocks."""
    rng = np.random.default_rng(seed)
    names = [f"c{n:02d}" for n in range(count)]
    slower = dict(zip(names, field(rng, count), strict=True)) | {BASE: 0.1}
    course = {
        one.config: {
            name: one.best_ms * np.exp(slow + rng.choice(one.residuals, suite.blocks))
            for name, slow in slower.items()
        }
        for one in noise
    }
    everything = seen(course, [*names, BASE], suite.blocks)
    ended = race(course, names, suite.blocks)
    stayed = [name for name in names if ended[name] == suite.blocks]
    full_top = stopping.order(everything, names, BASE)[:PLACES]
    race_top = stopping.order(everything, stayed, BASE)[:PLACES]
    full, raced = (
        sum(time_ms(one, slower, to, suite, seed) for one in noise)
        for to in (dict.fromkeys(names, suite.blocks), ended)
    )
    return Race(set(full_top) == set(race_top), raced / full, float(np.mean(list(ended.values()))))


def race(
    course: dict[str, dict[str, np.ndarray]], names: Sequence[str], blocks: int
) -> dict[str, int]:
    """Candidate → blocks after which it left, by the harness's own rule."""
    looks = stopping.StoppingRule(race=PLACES).looks(blocks)
    level = stopping.race_level(PLACES, len(names), len(looks))
    ended = dict.fromkeys(names, blocks)
    alive = list(names)
    for look in looks:
        times = seen(course, [*alive, BASE], look)
        ranking = stopping.order(times, alive, BASE)
        lost = stopping.losses(times, ranking, PLACES, level)
        ended |= dict.fromkeys(lost, look)
        alive = [name for name in alive if name not in lost]
    return ended


def seen(
    course: dict[str, dict[str, np.ndarray]], names: Sequence[str], look: int
) -> stopping.Times:
    """The first `look` blocks."""
    return {
        config: {name: dict(enumerate(times[name][:look].tolist())) for name in names}
        for config, times in course.items()
    }


def time_ms(
    noise: Noise, slower: dict[str, float], ended: dict[str, int], suite: Suite, seed: int
) -> float:
    """GPU time of all turns on one config; `ended`: after how many timed blocks each leaves."""
    case = next(case for case in suite.cases if case.name == noise.config)
    soonest = min(ended.values())
    soonest_or_none = soonest if soonest < suite.blocks else None
    problem = get_problem(suite.problem)
    names = {BASE: suite.blocks} | ended
    plan = plan_case(suite, case, problem, [*names], random.Random(seed), soonest_or_none)
    total = 0.0
    for name, last in names.items():
        met = [turn for block in plan if block.index < last for turn in block.turns]
        turns = CHECK_BURSTS + sum(turn.name == name for turn in met)
        total += turns * noise.turn_ms(slower[name])
        if name == BASE:
            total += turns * noise.gap_ms
    return total


# --------------------------------------------------------------------------- on a GPU


def on_gpu(count: int, gpus: Sequence[str]) -> None:
    """`count` entries of known slowness: all blocks for all, and a race, together if on two GPUs; tops and times."""
    official = load_suite("fa3", ROOT / "configs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        entries = []
        for number in range(count):  # shuffled, so that no order of names or starts can help
            slower_pct = 60.0 * ((number * 37) % count) / count
            write_entry(folder / f"c{number:02d}", slower_pct, FLASH)
            entries.append(str(folder / f"c{number:02d}"))
        cases = [{**case.model_dump(mode="json"), "burst": 3} for case in official.cases]
        suite = {"name": "race", "against": FLASH, "blocks": 20, "cases": cases}
        (folder / "race.yaml").write_text(json.dumps(suite))
        with ThreadPoolExecutor(len(set(gpus))) as pool:
            both = (
                pool.submit(run_suite, folder, entries, "full", gpus[0]),
                pool.submit(run_suite, folder, entries, "race", gpus[-1], "--race", str(PLACES)),
            )
            (full, full_s), (raced, raced_s) = (one.result() for one in both)
    for label, lines, wall_s in (("full run", full, full_s), ("race", raced, raced_s)):
        print(
            f"{label}: top {PLACES} {top(lines)}, {gpu_s(lines):.1f} s in timed bursts, {wall_s:.0f} s in all"
        )
    print(
        f"same top {PLACES}: {set(top(full)) == set(top(raced))}; time {gpu_s(raced) / gpu_s(full):.0%}"
    )


def run_suite(
    folder: Path, entries: Sequence[str], label: str, gpu: str, *flags: str
) -> tuple[list[dict], float]:
    """Lines of one run and its wall time."""
    command = [sys.executable, str(ROOT / "run.py"), "--json", "--baselines", FLASH]
    command += ["--suite", str(folder / "race.yaml"), "--submission", ",".join(entries), *flags]
    command += ["--gpu", gpu] if gpu else []
    command += ["--results", str(folder / label), "--leaderboard", str(folder / f"{label}.md")]
    started = time.monotonic()
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(told.stdout)["results"], time.monotonic() - started


def top(lines: Sequence[dict]) -> list[str]:
    """The fastest candidates by the geometric mean of their speed-ups, of those with all configs."""
    scores: dict[str, list[float]] = {}
    for line in lines:
        if line["kind"] == "submission" and line["speedup"]:
            scores.setdefault(line["entry"], []).append(math.log(line["speedup"]["value"]))
    most = max(map(len, scores.values()))
    whole = [entry for entry, logs in scores.items() if len(logs) == most]
    return sorted(whole, key=lambda entry: -sum(scores[entry]))[:PLACES]


def gpu_s(lines: Sequence[dict]) -> float:
    """Seconds by the judge's clock in the timed bursts of everybody."""
    return sum(sample["t2_ms"] for line in lines for sample in line["samples"]) / 1e3


if __name__ == "__main__":
    main()
