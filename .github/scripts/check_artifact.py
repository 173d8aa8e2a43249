"""Take the records out of an artifact as if an enemy had packed it.

    python .github/scripts/check_artifact.py ARTIFACT --submission NAME --suite fa3 --into results

The machine that wrote it ran code of a stranger. So: few and small regular files, strict lines,
only the submission asked for and the suite's baselines, the very source and suite of this
checkout, every case exactly once, hidden ones as the told secret draws them, figures that follow
from the samples (joules do not, and are left out), commitments that open and are new, no time that beats the chip. What passes is written anew by us; nothing of the artifact is kept as it
came. This finds forgeries that contradict themselves or the checkout. A machine that was taken
over entirely can still lie consistently: the runner must be new for every run.
"""

from __future__ import annotations

import argparse
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from path_guard import git  # noqa: E402

from harness import PROTOCOL  # noqa: E402
from harness.board import record  # noqa: E402
from harness.board.record import NO_VERDICT  # noqa: E402
from harness.board.render.text import sanitize  # noqa: E402
from harness.catalog.entrants import load_entrant  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.errors import HarnessError  # noqa: E402
from harness.judge.secret import Secret  # noqa: E402
from harness.measure.audit import unlike_a_run  # noqa: E402
from harness.measure.gpu_specs import misnamed, part_of  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.problems.shapes import hidden_cases  # noqa: E402
from harness.schema import Case, Entrant, Kind, Result, Status, Suite  # noqa: E402

MOST_FILES = 20
MOST_FILE_BYTES = 32 << 20
MOST_LINE_BYTES = 4 << 20
MOST_LINES = 500
BEHIND_WALLS = re.compile(r"judged/[1-3]")  # 0: the submission could reach what the judge wrote
HELD = re.compile(r"(judged|unlocked|cooperative)/[0-3]")
COMMITTED = re.compile(rb'"secret_commitment":"([0-9a-f]{64})"')
UNCHECKED = {"energy": None}  # it is above the null kernel's, which no record holds
DAY_S = 86_400
MOST_DAYS = 2  # from the measurement until its records are taken
COMMIT_DIGITS = (
    12  # of the harness, as a record tells it; a '+' behind them says that files differed
)


@dataclass(frozen=True)
class Expected:
    """What the checkout says the records must say."""

    submission: str
    suite: Suite
    entrants: dict[str, Entrant]  # of this checkout, by name
    commit: str  # of the harness; the measuring job had the same checkout
    recorded: list[record.Head]  # what stands in the results already
    days: tuple[str, str]  # the first and the last date that a run may tell
    commitments: frozenset[str] = frozenset()  # of secrets that everybody knows

    @property
    def entries(self) -> set[str]:
        """Who may occur."""
        return {self.submission, *self.suite.baselines, self.suite.against}


def main(argv: list[str] | None = None) -> int:
    """0: every record was taken; 1: none was, with every reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--submission", required=True)
    parser.add_argument("--suite", default="fa3")
    parser.add_argument("--into", type=Path, required=True, help="results folder to add to")
    parser.add_argument("--root", type=Path, default=ROOT, help="the trusted checkout")
    args = parser.parse_args(argv)
    try:
        expected = expect(args.root, args.submission, args.suite, args.into)
        results = list(read(args.artifact))
        reasons = faults(results, expected)
    except (HarnessError, ValueError) as error:
        results, reasons = [], [str(error)]
    for reason in reasons:
        print(f"refused: {sanitize(reason)}")
    if reasons:
        print("next: run the measurement again on a new runner; treat the old one as lost")
        return 1
    for result in results:
        record.append(args.into, result.model_copy(update=UNCHECKED))
    print(f"{len(results)} records taken")
    return 0


def expect(root: Path, submission: str, suite_name: str, into: Path) -> Expected:
    """Read the checkout: the suite, everybody who may occur with his hash, and what is recorded."""
    suite = load_suite(suite_name, root / "configs")
    problem = get_problem(suite.problem)
    folders = {submission: (root / "submissions", Kind.SUBMISSION)}
    folders |= dict.fromkeys({*suite.baselines, suite.against}, (root / "baselines", Kind.BASELINE))
    entrants = {
        name: load_entrant(folder / name, kind, problem, folder)
        for name, (folder, kind) in folders.items()
        if (folder / name).is_dir()
    }
    if submission not in entrants:
        raise ValueError(f"submissions/{submission} is not in this checkout")
    commit = git(root, "rev-parse", "HEAD").decode().strip()
    days = (today() - MOST_DAYS * DAY_S, today() + DAY_S)
    first, last = (time.strftime("%Y-%m-%d", time.gmtime(day)) for day in days)
    recorded, _ = record.heads(into)
    told = (COMMITTED.findall(path.read_bytes()) for path in into.rglob("*.jsonl"))
    known = frozenset(each.decode() for found in told for each in found)
    short = commit[:COMMIT_DIGITS]
    return Expected(submission, suite, entrants, short, recorded, (first, last), known)


def today() -> float:
    """Seconds since 1970 by this machine's clock, which did not run the submission."""
    return time.time()


def read(artifact: Path) -> Iterator[Result]:
    """Every line of every file; ValueError at the first thing that is not as it must be."""
    paths = sorted(artifact.rglob("*"))
    if len(paths) > 2 * MOST_FILES:
        raise ValueError(f"{len(paths)} files and folders, at most {2 * MOST_FILES}")
    lines = 0
    for path in paths:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path.name!r}: a link or device")
        if path.suffix != ".jsonl":
            raise ValueError(f"{path.name!r}: only .jsonl files are expected")
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ValueError(f"{path.name!r}: more than {MOST_FILE_BYTES >> 20} MiB")
        for number, raw in enumerate(path.read_bytes().splitlines(), start=1):
            lines += 1
            if lines > MOST_LINES or len(raw) > MOST_LINE_BYTES:
                raise ValueError(f"{path.name!r}:{number}: too many or too long lines")
            try:
                yield record.parse(raw)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path.name!r}:{number}: {error}") from error


def faults(results: Sequence[Result], expected: Expected) -> list[str]:
    """Every reason not to believe them."""
    if not results:
        return ["the artifact holds no record"]
    reasons = []
    same = ("run", "date", "gpu", "suite", "suite_sha256", "protocol", "harness_commit", "machine")
    reasons += _of_run(results[0], expected)
    reasons += [
        f"records differ in {name}" for name in same if len({getattr(r, name) for r in results}) > 1
    ]
    counts = Counter((r.entry, r.config) for r in results)
    reasons += [
        f"{entry} on {config} occurs {n} times" for (entry, config), n in counts.items() if n > 1
    ]
    if len({r.secret for r in results if r.case.hidden}) > 1:
        reasons.append("hidden shapes of several secrets, where a run draws all from one")
    for entry in sorted({r.entry for r in results} | {expected.submission}):
        told = [r for r in results if r.entry == entry]
        own = expected.suite.cases if entry == expected.submission else ()
        for case in dict.fromkeys([*own, *_hidden(told, results, expected)]):
            if not counts[entry, case.name]:
                reasons.append(f"{entry} has no record on {case.name}")
    by_key = {(r.entry, r.config): r for r in results}
    for result in results:
        rows = {entry: row for (entry, config), row in by_key.items() if config == result.config}
        reasons += [
            f"{result.entry} on {result.config}: {why}" for why in _of_one(result, rows, expected)
        ]
    return reasons


def _of_run(result: Result, expected: Expected) -> list[str]:
    """What all rows share: when it ran, as what, and on which chip."""
    part, machine = part_of(result.machine), result.machine
    mine = [head for head in expected.recorded if head.entry == expected.submission]
    newest = max((head.date for head in mine if head.gpu == result.gpu), default="")
    file = record.file_name(result.date, result.suite, result.run)
    checks = {
        f"date {result.date} is not of {' to '.join(expected.days)}": (
            expected.days[0] <= result.date[:10] <= expected.days[1]
        ),
        f"date {result.date} is not after its last record's, {newest}": result.date > newest,
        f"run {result.run} is recorded already": all(
            head.run != result.run and head.path.name != file for head in expected.recorded
        ),
        f"{machine.gpu} with {machine.sms} SMs of {machine.capability} is no GPU of "
        "harness/measure/gpu_specs.py: what it can do at most is not known": (
            part is not None and not misnamed(machine)
        ),
    }
    return [why for why, fine in checks.items() if not fine]


def _hidden(
    mine: Sequence[Result], results: Sequence[Result], expected: Expected
) -> tuple[Case, ...]:
    """The shapes that a run asks besides, where `mine` passed on all of the suite's own.

    Hidden rows tell from what secret they are drawn; without one the names are enough.
    """
    own = {r.config for r in mine if r.status is Status.PASSED}
    if any(case.name not in own for case in expected.suite.cases):
        return ()
    hidden = next((r for r in results if r.case.hidden), None)
    return _drawn(hidden.secret if hidden else "00", expected.suite)


def _drawn(secret: str, suite: Suite) -> tuple[Case, ...]:
    """The hidden shapes that follow from `secret`; none from what is no secret."""
    if not re.fullmatch(r"([0-9a-f]{2})+", secret):
        return ()
    number = Secret(bytes.fromhex(secret)).seed
    return hidden_cases(suite.cases, suite.hidden, number, get_problem(suite.problem))


def _of_one(result: Result, rows: Mapping[str, Result], expected: Expected) -> list[str]:
    """`rows`: of its case, by entry."""
    suite, entrant = expected.suite, expected.entrants.get(result.entry)
    base = rows.get(result.speedup.against) if result.speedup else None
    wanted = Kind.SUBMISSION if result.entry == expected.submission else Kind.BASELINE
    hidden, passed = result.case.hidden, result.status is Status.PASSED
    cases = _drawn(result.secret, suite) if hidden else suite.cases
    checks = {
        f"{result.status.value}, a verdict on a baseline: the machine's fault, not the submission's": (
            wanted is Kind.SUBMISSION or _leaves_the_board(result, entrant)
        ),
        "not an entry of this run": result.entry in expected.entries,
        f"kind is {result.kind.value}": result.kind is wanted,
        "its source is not the one of this checkout": (
            entrant is not None and entrant.source_sha256 == result.source_sha256
        ),
        f"computes {result.problem}, not {suite.problem}": result.problem == suite.problem,
        "another suite than this checkout's": (result.suite, result.suite_sha256)
        == (suite.name, suite.sha256),
        "its shape is not the suite's" + ", nor drawn from its secret" * hidden: (
            result.case in cases and result.case.name == result.config
        ),
        "its author or language is not the manifest's": entrant is not None
        and (result.author, result.language)
        == (entrant.manifest.author, entrant.manifest.language),
        "its secret was told before": result.secret_commitment not in expected.commitments,
        "a run that stops early, which nobody asked for": result.stopping is None,
        "a stretch that nobody asked for": result.sustained is None or suite.sustained_s > 0,
        f"held as {result.integrity[:20]!r}": bool(HELD.fullmatch(result.integrity)),
        f"protocol {result.protocol}, here {PROTOCOL}": result.protocol == PROTOCOL,
        "gpu and machine disagree": result.gpu == result.machine.gpu and result.machine.has_gpu,
        f"harness {result.harness_commit[:41]}, here {expected.commit}": (
            result.harness_commit == expected.commit
        ),
    }
    reasons = [why for why, fine in checks.items() if not fine]
    reasons += unlike_a_run(result, base, suite, entrant, rows) if entrant else []
    return reasons + (_of_times(result, base, expected) if passed else [])


def _leaves_the_board(result: Result, baseline: Entrant | None) -> bool:
    """Whether a baseline's row takes nothing from the board's: it passed, or says nothing of it."""
    if result.status is Status.UNSUPPORTED:
        return baseline is not None and bool(baseline.manifest.claims.refusal(result.case))
    return result.status is Status.PASSED or result.status in NO_VERDICT


def _of_times(result: Result, base: Result | None, expected: Expected) -> list[str]:
    checks = {
        f"{result.integrity[:20]!r}: not judged behind walls": bool(
            BEHIND_WALLS.fullmatch(result.integrity)
        ),
        "no speed-up over the suite's baseline": result.speedup is not None
        and result.speedup.against == expected.suite.against,
        "the baseline it was timed beside is missing": base is not None
        and base.status is Status.PASSED,
    }
    return [why for why, fine in checks.items() if not fine]


if __name__ == "__main__":
    sys.exit(main())
