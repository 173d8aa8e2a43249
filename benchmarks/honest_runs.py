"""Honest kernels, judged again and again: how often is one refused that did nothing wrong?

    python benchmarks/honest_runs.py --runs 20 --out FOLDER            20 runs, then the table of FOLDER
    python benchmarks/honest_runs.py --count results FOLDER            the table of records that are there
    python benchmarks/honest_runs.py --runs 2 --cpu --out FOLDER       without a GPU: tries the script

All of KERNELS take part as submissions, the libraries among them too, so that every rule for
strangers holds for them. A run has one case and --blocks blocks; its judge starts while the run before
it ends. What counts is timed bursts, which a record holds one by one, and verdicts: a row that is
refused for anything that a kernel can be blamed for is a false one. Exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from harness import PROTOCOL  # noqa: E402
from harness.board import record  # noqa: E402
from harness.catalog.entrants import find_entrants, load_entrant  # noqa: E402
from harness.catalog.request import Request  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.engine.events import Observer  # noqa: E402
from harness.engine.session import execute  # noqa: E402
from harness.measure.machine import inspect_machine  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.process import prestart  # noqa: E402
from harness.process.sandbox.enter import usual_level  # noqa: E402
from harness.schema import BLAMELESS, Kind, Result, Status  # noqa: E402

KERNELS = "submissions/cuda_hopper,submissions/triton_champion,submissions/gluon_champion,"
KERNELS += "submissions/triton_template,baselines/flash_attn_3,baselines/flash_attn_4"
BLAMED = frozenset(Status) - BLAMELESS


@dataclass
class Tally:
    """What the records say of one entrant, or of all."""

    runs: set[str] = field(default_factory=set)
    rows: int = 0
    bursts: int = 0
    late: int = 0  # bursts that the two clocks did not agree on by themselves, and are not scored
    statuses: Counter[Status] = field(default_factory=Counter)

    def take(self, result: Result) -> None:
        """Count one row."""
        self.runs.add(result.run)
        self.rows += 1
        self.bursts += len(result.samples)
        self.late += sum(sample.late for sample in result.samples)
        self.statuses[result.status] += 1

    @property
    def false(self) -> int:
        """Rows that blame the kernel."""
        return sum(n for status, n in self.statuses.items() if status in BLAMED)


def tallies(results: Iterable[Result], protocol: int = PROTOCOL) -> dict[str, Tally]:
    """By entrant, in the order of names; `all` is all of them. Rows of other protocols are left out."""
    found: dict[str, Tally] = {"all": Tally()}
    for result in results:
        if result.protocol == protocol:
            found.setdefault(result.entry, Tally()).take(result)
            found["all"].take(result)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "all", item[0])))


def table(found: dict[str, Tally]) -> list[str]:
    """Markdown."""
    lines = ["| entrant | runs | rows | timed bursts | late | false verdicts | rows by status |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for name, one in found.items():
        told = ", ".join(f"{status.value} {n}" for status, n in one.statuses.most_common())
        figures = (len(one.runs), one.rows, one.bursts, one.late, one.false)
        lines.append(f"| {name} | {' | '.join(map(str, figures))} | {told} |")
    return lines


def counted(folders: Sequence[Path]) -> int:
    """Print the table of the records below `folders`."""
    results: list[Result] = []
    for folder in folders:
        heads, bad = record.heads(folder)
        here, worse = record.read(heads)
        results += here
        for line in (*bad, *worse):
            print(f"left out: {line}", file=sys.stderr)
    found = tallies(results)
    print("\n".join(table(found)))
    return 1 if found["all"].false or not found["all"].bursts else 0


def request_of(args: argparse.Namespace) -> Request:
    """KERNELS as submissions beside the suite's own headline baseline."""
    machine = inspect_machine()
    machine = machine.without_gpu() if args.cpu else machine
    suite = load_suite("smoke" if args.cpu else "quick", ROOT / "configs")
    case = suite.cases[0] if args.cpu else next(c for c in suite.cases if c.headdim == args.headdim)
    problem = get_problem(suite.problem)
    kernels = [
        load_entrant(ROOT / name, Kind.SUBMISSION, problem) for name in args.kernels.split(",")
    ]
    baseline = find_entrants([suite.against], ROOT / "baselines", Kind.BASELINE, problem)
    return Request(
        suite=suite.model_copy(update={"blocks": args.blocks, "hidden": 0}),
        machine=machine,
        entrants=(*kernels, *baseline),
        baseline=suite.against,
        sandbox=usual_level(),
        cases=(case.name,),
    )


def runs(args: argparse.Namespace) -> int:
    """So many runs, as far as --seconds goes; their records lie in --out."""
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    request, deadline = request_of(args), time.monotonic() + args.seconds

    def save(result: Result) -> None:
        record.append(args.out, result)

    for number in range(args.runs):
        begun = time.monotonic()
        if begun > deadline:
            print(f"{number} of {args.runs} runs in {args.seconds:g} s")
            break
        prestart.start_next(2 if number + 1 < args.runs else 1)  # the next one's meanwhile
        execute(request, save, Told())
        print(f"run {number + 1}: {time.monotonic() - begun:.1f} s", flush=True)
    return counted([args.out])


class Told(Observer):
    """Prints notes and rows that are not PASSED."""

    def note(self, text: str) -> None:
        """Something a person should know."""
        print(f"  {text}", flush=True)

    def verdict(self, result: Result) -> None:
        """One row."""
        if result.status is not Status.PASSED:
            print(f"  {result.entry}: {result.status.value} {result.reason[:200]}", flush=True)


def main() -> int:
    """Run and count, or count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--headdim", type=int, default=128)
    parser.add_argument("--kernels", default=KERNELS, help="folders, with commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after that")
    parser.add_argument("--out", type=Path, default=Path("honest"))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--count", type=Path, nargs="+", metavar="FOLDER", help="of records")
    args = parser.parse_args()
    return counted(args.count) if args.count else runs(args)


if __name__ == "__main__":
    sys.exit(main())
