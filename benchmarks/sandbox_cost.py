"""What the usual sandbox level costs: one kernel twice in one run, once behind it and once without.

    python benchmarks/sandbox_cost.py [--suite quick] [--blocks 20]

Both meet the same inputs in the same blocks in random order; the figure is the paired ratio of their
times with its interval, and the seconds each worker took to be ready.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.catalog.entrants import load_entrant  # noqa: E402
from harness.catalog.request import Request  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.engine import session  # noqa: E402
from harness.engine.assign_roles import Crew  # noqa: E402
from harness.engine.events import Observer  # noqa: E402
from harness.measure import stats  # noqa: E402
from harness.measure.machine import inspect_machine  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.process.sandbox.enter import lacking, usual_level  # noqa: E402
from harness.schema import Entrant, Kind, Result  # noqa: E402

BARE, WALLED = "without", "behind"


def main() -> int:
    """Run, pair, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--suite", default="")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--kernel", type=Path, default=ROOT / "submissions" / "triton_template")
    args = parser.parse_args()
    level = usual_level()
    if not level:
        sys.exit(f"no walls here: {lacking(1)}")
    machine = inspect_machine()
    suite = load_suite(args.suite or ("quick" if machine.has_gpu else "smoke"), ROOT / "configs")
    suite = suite.model_copy(update={"blocks": args.blocks, "warmup_blocks": 2})
    rows: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="attnboard-cost-") as folder:
        entrants = []
        for name in (BARE, WALLED):
            copy = Path(folder) / name
            shutil.copytree(args.kernel, copy, ignore=shutil.ignore_patterns("steps", "*.md"))
            manifest = copy / "manifest.yaml"
            text = manifest.read_text(encoding="utf-8").replace(
                f"name: {args.kernel.name}", f"name: {name}"
            )
            manifest.write_text(text, encoding="utf-8")
            problem = get_problem(suite.problem)
            entrants.append(load_entrant(copy, Kind.SUBMISSION, problem))
        request = Request(
            suite=suite,
            machine=machine,
            entrants=tuple(entrants),
            baseline=suite.against,
            cache=Path(folder) / "cache",
            sandbox=level,
        ).with_trusted()
        real = Crew.add

        def add(crew: Crew, entrant: Entrant) -> None:
            own = 0 if entrant.name == BARE else level
            crew.request = replace(request, sandbox=own)
            real(crew, entrant)

        with mock.patch.object(Crew, "add", add):
            session.execute(request, rows.append, Observer())
    print("| config | behind / without | interval |\n|---|---|---|")
    for case in suite.cases:
        times = {
            row.entry: {s.block: s.latency_ms for s in row.scored}
            for row in rows
            if row.config == case.name and row.latency_ms
        }
        found = stats.speedup(times[WALLED], times[BARE]) if len(times) >= 2 else None
        print(
            f"| {case.name} | {found.value:.4f} | [{found.low:.4f}, {found.high:.4f}] |"
            if found
            else f"| {case.name} | no figure: {[(r.entry, r.status.value, r.reason) for r in rows]} | |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
