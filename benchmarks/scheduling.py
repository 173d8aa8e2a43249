"""What scheduling costs: 1,000 units that measure nothing, and 100,000 of them on 256 GPUs, calculated.

    python benchmarks/scheduling.py [--units 1000] [--places 2] [--engine local|ray] [--out FILE.json]
    python benchmarks/scheduling.py --sleep-s 2     # 32 units that sleep, on 1, 2 and 4 places
    python benchmarks/scheduling.py --simulate-only --head-ms 5 --row-ms 3 --startup-s 20 --timed-s 15

Measured: the same null units (benchmarks/null_unit.py), once started by a bare loop and once as a campaign
with records on disk: how long a place stays empty between two units, the head's own CPU time a unit, which
is what bounds a rack, and the head's resident memory after every tenth of the units. The two wall times
stand beside each other for orientation; on a host with other work their difference says little.

Simulated: one head serves 256 GPUs first come, first served. A GPU that has ended a unit waits for the
head, then starts the next. `--startup-s` and `--timed-s` are what a unit takes: the first is spent without
a kernel on the clock (processes, CUDA contexts, builds), the second is what the GPU is there for.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402 - the checkout is the package
from harness.board.store import Store  # noqa: E402
from harness.campaign.campaign import Campaign  # noqa: E402
from harness.campaign.executor import Engine  # noqa: E402
from harness.campaign.local import Local  # noqa: E402
from harness.campaign.unit import Unit, plan_units, to_text  # noqa: E402
from harness.catalog.request import Request  # noqa: E402
from harness.process.sandbox.usage import resident_bytes  # noqa: E402
from harness.schema import Case, Entrant, Kind, Machine, Manifest, Result, Suite  # noqa: E402

MODULE = "benchmarks.null_unit"
COMMAND = (sys.executable, "-m", MODULE)
CASES = tuple(
    Case(name=f"hdim{d}", batch=1, heads=1, seqlen=128, headdim=d) for d in (64, 128, 256)
)
SUITE = Suite(name="null", device="cpu", cases=CASES, against="base", baselines=("base",))
GPUS, UNITS = 256, 100_000


class Quiet:
    """A view that only looks at the clock and at memory."""

    def __init__(self, every: int) -> None:
        self.every, self.done = every, 0
        self.memory_mib: list[float] = []

    def planned(self, units: int, at_once: int) -> None:
        """Nothing."""

    def started(self, label: str, names: tuple[str, ...], where: str) -> None:
        """Nothing."""

    def heard(self, label: str, message: Mapping[str, object]) -> None:
        """Nothing."""

    def ended(self, label: str, why: str, again: int) -> None:
        """Read memory at every tenth."""
        if why:
            print(f"{label}: {why}", file=sys.stderr)
        self.done += 1
        if self.done % self.every == 0:
            self.memory_mib.append(round(resident_bytes(os.getpid()) / 2**20, 1))

    def verdict(self, result: Result) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""


class Timed(Local):
    """The local engine with a watch on its slots: how long one stays empty between two units."""

    def __init__(self, places: int) -> None:
        super().__init__(["none"] * places, command=COMMAND)
        self.empty_since: dict[int, float] = {}
        self.gaps_ms: list[float] = []

    def _start(self, unit: Unit, slot: Any) -> None:
        super()._start(unit, slot)
        since = self.empty_since.pop(id(slot), None)
        if since is not None:
            self.gaps_ms.append(1000 * (time.perf_counter() - since))

    def _read(self, child: Any) -> Any:
        told = super()._read(child)
        if child.slot.child is None:
            self.empty_since[id(child.slot)] = time.perf_counter()
        return told


def main() -> int:
    """Measure, calculate, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--places", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--sleep-s", type=float, help="only: 32 units that sleep so long")
    parser.add_argument("--simulate-only", action="store_true")
    parser.add_argument("--head-ms", type=float, help="head's time a unit (default: as measured)")
    parser.add_argument("--row-ms", type=float, help="… and a row with its samples")
    parser.add_argument("--startup-s", type=float, default=20.0)
    parser.add_argument("--timed-s", type=float, default=15.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    document: dict[str, Any] = {}
    if args.sleep_s:
        document["sleeping"] = sleeping(args.sleep_s)
        return tell(document, args.out)
    head_ms, row_ms = args.head_ms or 5.0, args.row_ms or 3.0
    if not args.simulate_only:
        document["measured"] = measured = measure(args.engine, args.units, args.places)
        document["real_rows"] = real = real_rows(ROOT / "results")
        head_ms = args.head_ms or measured["head_cpu_ms_per_unit"]
        row_ms = args.row_ms or real.get("read_and_saved_ms", row_ms)
        document["planning"] = plan_many(UNITS)
    document["simulated"] = [
        simulate(
            UNITS,
            gpus,
            (head_ms + (per_unit + 1) * len(CASES) * row_ms) / 1000,
            args.startup_s,
            args.timed_s,
            per_unit,
        )
        for gpus, per_unit in ((GPUS, 1), (GPUS, 4), (GPUS, 8), (4096, 1))
    ]
    return tell(document, args.out)


def tell(document: dict[str, Any], out: Path | None) -> int:
    """Print and, if asked to, write."""
    print(json.dumps(document, indent=1))
    if out:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


# --------------------------------------------------------------------------- measured


def entrants(count: int, prefix: str = "n") -> tuple[Entrant, ...]:
    """`count` submissions that exist by name only, and their baseline."""
    base = entrant("base", Kind.BASELINE)
    return (*(entrant(f"{prefix}{number:06d}") for number in range(count)), base)


def entrant(name: str, kind: Kind = Kind.SUBMISSION) -> Entrant:
    """A name with a hash."""
    folder, source = Path("/nowhere"), name.encode().hex().zfill(64)
    manifest = Manifest(name=name)
    return Entrant(name=name, kind=kind, folder=folder, manifest=manifest, source_sha256=source)


def units(count: int, prefix: str = "n") -> list[Unit]:
    """One unit an entrant."""
    return plan_units(Request(SUITE, Machine(), entrants(count, prefix), "base"))


def sleeping(sleep_s: float) -> list[dict[str, float]]:
    """What is left of 2 and 4 places when a unit takes no CPU: the scheduling's share of a speed-up."""
    os.environ |= {"NULL_UNIT_SUITE": SUITE.sha256, "NULL_UNIT_SLOW_S": str(sleep_s)}
    found: list[dict[str, float]] = []
    for places in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            save, started = Store(Path(folder)).save, time.perf_counter()
            Campaign(Timed(places), units(32, "slow-"), save, Quiet(32)).run()
        seconds = time.perf_counter() - started
        per_minute = 60 * 32 / seconds
        speed_up = per_minute / (found[0]["units_per_minute"] if found else per_minute)
        row = {"places": places, "seconds": seconds, "units_per_minute": per_minute}
        found.append(
            {name: round(value, 3) for name, value in {**row, "speed_up": speed_up}.items()}
        )
    return found


def measure(engine: str, count: int, places: int) -> dict[str, Any]:
    """The same processes from a bare loop and from a campaign."""
    os.environ["NULL_UNIT_SUITE"] = SUITE.sha256
    todo = units(count)
    bare_s = bare_loop([to_text(unit) for unit in todo], places)
    view = Quiet(max(1, count // 10))
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        runner = make(engine, places)
        before, started = cpu_s(), time.perf_counter()
        Campaign(runner, todo, store.save, view).run()
        wall_s, head_s = time.perf_counter() - started, cpu_s() - before
        lines = sum(path.read_bytes().count(b"\n") for path in Path(folder).rglob("*.jsonl"))
    return {
        "engine": engine,
        "units": count,
        "places": places,
        "rows_recorded": lines,
        "rows_expected": 2 * len(CASES) * count,
        "bare_loop_ms_per_unit_and_place": round(1000 * bare_s * places / count, 2),
        "campaign_ms_per_unit_and_place": round(1000 * wall_s * places / count, 2),
        **gaps_of(runner),
        "head_cpu_ms_per_unit": round(1000 * head_s / count, 2),
        "head_memory_mib": view.memory_mib,
    }


def gaps_of(runner: Engine) -> dict[str, float]:
    """From a unit's end to the start of the next process in its place, the record's fsync included."""
    if not isinstance(runner, Timed):
        return {}
    gaps = sorted(runner.gaps_ms)
    return {
        "empty_ms_median": round(gaps[len(gaps) // 2], 2),
        "empty_ms_p99": round(gaps[int(0.99 * len(gaps))], 2),
    }


def make(engine: str, places: int) -> Engine:
    """The engine asked for; Ray on this host alone."""
    if engine == "local":
        return Timed(places)
    import ray

    from harness.campaign.ray import RayCluster

    ray.init(num_cpus=places, include_dashboard=False, log_to_driver=False)
    return RayCluster(None, 2 * places, on_cpu=True, module=MODULE)


def bare_loop(texts: Sequence[str], places: int) -> float:
    """Seconds that a loop without a harness needs for the same processes."""

    def one(text: str) -> None:
        pipe = subprocess.PIPE
        command = [*COMMAND, "--gpu", "none"]
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as child:
            assert child.stdin
            assert child.stdout
            child.stdin.write(f"{text}\n".encode())
            child.stdin.flush()  # and left open: a child whose stdin closes ends
            child.stdout.read()

    started = time.perf_counter()
    with ThreadPoolExecutor(places) as pool:
        list(pool.map(one, texts))
    return time.perf_counter() - started


def real_rows(results: Path) -> dict[str, float]:
    """What one row costs the head that holds the samples of a whole case, as on a GPU."""
    found, _ = record.read(record.heads(results)[0])
    lines = [record.to_line(result).encode() for result in found[:100]]
    if not lines:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        for line in lines:
            record.append(Path(folder), record.parse(line))
        wall_s = time.perf_counter() - started
    size = sum(map(len, lines)) / len(lines)
    return {"bytes": round(size), "read_and_saved_ms": round(1000 * wall_s / len(lines), 2)}


def cpu_s() -> float:
    """User and system time of this process, its children left out."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def plan_many(count: int) -> dict[str, float]:
    """What a queue of `count` units takes of the head before the first of them starts."""
    before, started = resident_bytes(os.getpid()), time.perf_counter()
    held = units(count)
    wall_s = time.perf_counter() - started
    mib = (resident_bytes(os.getpid()) - before) / 2**20
    return {"units": len(held), "seconds": round(wall_s, 1), "memory_mib": round(mib, 1)}


# --------------------------------------------------------------------------- simulated


def simulate(
    count: int, gpus: int, head_s: float, startup_s: float, timed_s: float, per_unit: int
) -> dict[str, Any]:
    """`count` submissions on `gpus` GPUs behind one head that needs `head_s` of every unit.

    A unit of n submissions takes startup + timed · (n + 1) / 2: the timed seconds are those of one
    submission beside its baseline. Durations vary by 20 %, drawn from a fixed seed.
    """
    rng = random.Random(0)
    mean_s = startup_s + timed_s * (per_unit + 1) / 2
    left = -(-count // per_unit)
    jobs, free_at, busy_s, waited_s = left, 0.0, 0.0, 0.0
    ends = [(0.0, gpu) for gpu in range(gpus)]
    last = 0.0
    while left:
        now, gpu = heapq.heappop(ends)
        start = max(now, free_at) + head_s
        free_at = start
        spent = mean_s * rng.lognormvariate(0, 0.2)
        waited_s += start - now
        busy_s += spent
        last = max(last, start + spent)
        heapq.heappush(ends, (start + spent, gpu))
        left -= 1
    useful_s = count * timed_s / 2  # the submissions' own half of what is timed
    shares = {
        "start-up of units": jobs * startup_s / (gpus * last),
        "baseline beside every unit": jobs * timed_s / 2 / (gpus * last),
        "waiting for the head": waited_s / (gpus * last),
    }
    return {
        "submissions": count,
        "gpus": gpus,
        "per_unit": per_unit,
        "hours": round(last / 3600, 2),
        "head_busy": round(jobs * head_s / last, 4),
        "gpu_busy": round(busy_s / (gpus * last), 4),
        "submissions_on_the_clock": round(useful_s / (gpus * last), 4),
        **{name: round(share, 4) for name, share in shares.items()},
        "bottleneck": max(shares, key=lambda name: shares[name]),
        "gpus_that_one_head_feeds": int(mean_s / head_s),
    }


if __name__ == "__main__":
    sys.exit(main())
