"""How far the two clocks and the intervals can be trusted, measured with kernels that are known.

One process set, N runs of the suite's blocks, no correctness probes. Three entrants and the null kernel:

    a      the baseline, entered as itself: it sets the pace
    b      the same kernel entered a second time: the ratio is 1.0 by construction
    short  the same kernel in a worker that reports its times 3 % short
    null   nothing: what the judge's clock sees when no time is spent

Prints and writes one JSON document: how often the interval of b/a held 1.0, its half-width, how often an
honest worker and one that reports 3 % short were refused, and the slack per config.

    python benchmarks/clocks.py --suite fa3 --runs 40 --out clocks.json
    python benchmarks/clocks.py --cards

The second, without a GPU: how far the same source beside the same baseline differs from card to card, by
the records alone; behind `CARDS_LOG` of harness/measure/stats.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402
from harness.catalog.entrants import load_entrant  # noqa: E402
from harness.catalog.request import Request  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.engine.events import Observer  # noqa: E402
from harness.engine.session import facts_of, opened  # noqa: E402
from harness.engine.timing import time_case  # noqa: E402
from harness.measure import stats  # noqa: E402
from harness.measure.machine import inspect_machine  # noqa: E402
from harness.measure.two_clocks import check_clocks  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.schema import Case, Kind, Sample, Status  # noqa: E402

SHORT = """
import torch
_true = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: 0.97 * _true(self, end)
"""


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--suite", default="fa3")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--configs", default="", help="comma list; default: all of the suite")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--out", type=Path, default=Path("clocks.json"))
    parser.add_argument("--cards", action="store_true", help="from card to card, by the records")
    args = parser.parse_args()
    if args.cards:
        print(cards())
        return 0
    suite = load_suite(args.suite, ROOT / "configs").model_copy(update={"blocks": args.blocks})
    if args.configs:
        cases = tuple(case for case in suite.cases if case.name in args.configs.split(","))
        suite = suite.model_copy(update={"cases": cases})
    machine = inspect_machine()
    rows: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            request = make_request(suite, machine, Path(folder))
            with opened(request, lambda _: None, Observer(), facts_of(request)) as run:
                measure(run, rows, args.runs, args.seconds)
    finally:  # also of runs that Ctrl-C or a refused worker cut short
        if rows:
            document = summary(rows, suite.name, machine.gpu, args.blocks)
            args.out.write_text(json.dumps({**document, "runs_raw": rows}), encoding="utf-8")
            print(json.dumps(document, indent=1), flush=True)
    return 0


def make_request(suite: Any, machine: Any, folder: Path) -> Request:
    """The baseline, and two copies of its folder under other names."""
    problem = get_problem(suite.problem)
    home = ROOT / "baselines" / suite.against
    base = load_entrant(home, Kind.BASELINE, problem, ROOT / "baselines")
    source = (home / "submission.py").read_text(encoding="utf-8")
    manifest = (home / "manifest.yaml").read_text(encoding="utf-8")
    entrants = [base]
    for name, text in (("b", source), ("short", source + SHORT)):
        copy = folder / name
        copy.mkdir()
        (copy / "submission.py").write_text(text, encoding="utf-8")
        renamed = manifest.replace(f"name: {suite.against}", f"name: {name}")
        (copy / "manifest.yaml").write_text(renamed, encoding="utf-8")
        entrants.append(load_entrant(copy, Kind.SUBMISSION, problem))
    cache = folder / "cache"
    return Request(suite, machine, tuple(entrants), suite.against, cache=cache)


def measure(run: Any, rows: list[dict[str, Any]], runs: int, seconds: float) -> None:
    """`runs` times all blocks of all cases, on the same processes, a row each."""
    started = time.monotonic()
    for number in range(runs):
        if time.monotonic() - started > seconds:
            break
        rows.append({case.name: one(run, case) for case in run.suite.cases})
        print(f"run {number + 1}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def one(run: Any, case: Case) -> dict[str, Any]:
    """One run of one case: interval of b against a, and who was refused."""
    run.evidence.clear()
    run.null_gaps_ms.clear()
    time_case(run, case)
    base = run.roles.baseline
    samples = {name: run.record(name, case).samples for name in (base, "b", "short")}
    for name in samples:
        known = run.record(name, case)
        if known.status is not None:
            raise SystemExit(f"{name}: {known.status.value}: {known.reason}")
    gaps = run.null_gaps_ms[case.name]
    tolerance = run.facts.tolerance
    honest = check_clocks(samples["b"], samples[base], gaps, tolerance)
    return {
        "ratio": as_list(stats.speedup(times(samples[base]), times(samples["b"]))),
        "honest_refused": honest.refusal,
        "pace_refused": check_clocks(samples[base], samples["b"], gaps, tolerance).refusal,
        "short_refused": check_clocks(samples["short"], samples[base], gaps, tolerance).refusal,
        "slack": honest.slack.model_dump() if honest.slack else None,
        "late": sum(sample.late for sample in honest.samples),
    }


def times(samples: list[Sample]) -> dict[int, float]:
    """Block → latency."""
    return {sample.block: sample.latency_ms for sample in samples}


def as_list(interval: stats.Interval | None) -> list[float]:
    """(value, low, high)."""
    assert interval
    return [interval.value, interval.low, interval.high]


def summary(rows: list[dict[str, Any]], suite: str, gpu: str, blocks: int) -> dict[str, Any]:
    """Counts and medians per config, and of the geometric mean over the configs."""
    configs = {name: config_summary([row[name] for row in rows]) for name in rows[0]}
    means = [stats.geomean([stats.Interval(*row[name]["ratio"]) for name in row]) for row in rows]
    each = [cell for row in rows for cell in row.values()]
    return {
        "suite": suite,
        "gpu": gpu,
        "blocks": blocks,
        "runs": len(rows),
        "geomean": interval_summary([[m.value, m.low, m.high] for m in means]),
        "configs": configs,
        "honest_tries": 2 * len(each),
        "honest_refused": sum(bool(c["honest_refused"]) + bool(c["pace_refused"]) for c in each),
        "short_tries": len(each),
        "short_refused": sum(bool(c["short_refused"]) for c in each),
    }


def config_summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """One config over all runs."""
    slack = [cell["slack"] for cell in cells if cell["slack"]]
    return {
        **interval_summary([cell["ratio"] for cell in cells]),
        "slack_burst_pct": round(statistics.median(s["burst_pct"] for s in slack), 3),
        "slack_mean_pct": round(statistics.median(s["mean_pct"] for s in slack), 3),
        "slack_mean_pct_worst": round(max(s["mean_pct"] for s in slack), 3),
        "pace_gap_ms": round(statistics.median(s["pace_gap_ms"] for s in slack), 4),
        "null_gap_ms": round(statistics.median(s["null_gap_ms"] for s in slack), 4),
        "late_bursts": sum(cell["late"] for cell in cells),
        "short_refused": sum(bool(cell["short_refused"]) for cell in cells),
    }


def cards() -> str:
    """The spread of geometric means over the configs of a suite, two cards at a time."""
    apart = pairs_pct(record.read(record.heads(ROOT / "results")[0])[0])
    shares = {share: apart[round(share / 100 * (len(apart) - 1))] for share in (50, 90, 95, 100)}
    told_shares = ", ".join(f"{share} % of them {value:.2f} %" for share, value in shares.items())
    return f"{len(apart)} pairs of geometric means on two cards differ by at most: {told_shares}"


def pairs_pct(rows: Iterable[Any]) -> list[float]:
    """How far the geometric means over the same configs lie apart, two cards at a time, sorted."""
    logs: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(dict)
    for row in rows:
        told = row.speedup
        if row.status is Status.PASSED and row.machine.has_gpu and told:
            if row.entry == told.against or row.case.hidden:  # each run draws other shapes
                continue
            what = (row.gpu, row.suite_sha256, str(row.protocol))
            who = (*what, row.entry, row.source_sha256, told.against)
            logs[who].setdefault(row.machine.uuid, {})[row.config] = math.log(told.value)
    return sorted(
        100 * abs(sum(one.values()) - sum(other.values())) / len(one)
        for each in logs.values()
        for one, other in itertools.combinations(each.values(), 2)
        if one.keys() == other.keys()
    )


def interval_summary(ratios: list[list[float]]) -> dict[str, Any]:
    """How often 1.0 lay inside, and how wide the intervals were."""
    half = [50 * (high - low) / value for value, low, high in ratios]
    return {
        "held": sum(low <= 1.0 <= high for _, low, high in ratios),
        "of": len(ratios),
        "half_width_pct_median": round(statistics.median(half), 3),
        "half_width_pct_worst": round(max(half), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
