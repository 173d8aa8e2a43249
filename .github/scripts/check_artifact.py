"""Take the records out of an artifact as if an enemy had packed it.

    python .github/scripts/check_artifact.py ARTIFACT --submission NAME --suite fa3 --into results

The machine that wrote it ran code of a stranger. So: few and small regular files, strict lines,
only the submission asked for and the suite's baselines, the very source and suite of this
checkout, each case of the submission once, hidden ones as the told secret draws them, secrets that
are new. Of a row only what was measured is taken; the rest is made again as a run makes it
(harness/measure/audit.py), must be what was told, and is what we write, as a run that we name.
This finds forgeries that contradict themselves or the checkout. A machine that was taken over
entirely can still lie consistently: the runner must be new for every run.
"""

from __future__ import annotations

import argparse
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from path_guard import git  # noqa: E402

from harness.board import record  # noqa: E402
from harness.board.record import NO_VERDICT  # noqa: E402
from harness.board.render.text import sanitize  # noqa: E402
from harness.catalog.entrants import load_entrant  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.errors import HarnessError, StorageError  # noqa: E402
from harness.judge.secret import Secret  # noqa: E402
from harness.measure.audit import Asked, audited, dates_between, named_now, overlong  # noqa: E402
from harness.measure.gpu_specs import part_of  # noqa: E402
from harness.measure.verdict import asked_facts  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.problems.shapes import hidden_cases  # noqa: E402
from harness.schema import Case, Entrant, Kind, Result, Status, Suite  # noqa: E402

MOST_FILES = 20
MOST_FILE_BYTES = 32 << 20
MOST_LINE_BYTES = 4 << 20
MOST_LINES = 500
BEHIND_WALLS = re.compile(r"judged/[1-3]")  # 0: the submission could reach what the judge wrote
TOLD = re.compile(rb'"secret":"([0-9a-f]{64})"')
MOST_AGE_S = 2 * 86_400  # from the measurement until its records are taken
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
    days: tuple[str, str]  # the first day that a run may tell, and the last moment
    secrets: frozenset[str] = frozenset()  # that everybody knows; a commitment anybody can name


def main(argv: list[str] | None = None) -> int:
    """0: every record was taken; 1: none was, with every reason; 5: our own disk took none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--submission", required=True)
    parser.add_argument("--suite", default="fa3")
    parser.add_argument("--into", type=Path, required=True, help="results folder to add to")
    parser.add_argument("--root", type=Path, default=ROOT, help="the trusted checkout")
    args = parser.parse_args(argv)
    try:
        expected = expect(args.root, args.submission, args.suite, args.into)
        try:
            results = list(read(args.artifact, expected))
        except (OSError, RecursionError) as error:  # deeper folders than a path can name, say
            raise ValueError(f"it cannot be read: {error}"[:300]) from error
        reasons = faults(results, expected)
        taken, why = made_anew(results, expected) if results else ([], [])
        reasons += why
        if not reasons:
            run, _ = named_now()  # what it calls itself may be another's, not yet recorded
            record.append(args.into, *(row.model_copy(update={"run": run}) for row in taken))
    except StorageError as error:
        print(f"error: {sanitize(error.message)}")
        print(f"next: make room under {args.into}, and take the same artifact again")
        return error.exit_code
    except (HarnessError, ValueError) as error:
        taken, reasons = [], [str(error)]
    for reason in reasons:
        print(f"refused: {sanitize(reason)}")
    if reasons:
        print("next: run the measurement again on a new runner; treat the old one as lost")
        return 1
    print(f"{len(taken)} records taken")
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
    days = dates_between(today() - MOST_AGE_S, today())
    recorded, _ = record.heads(into)
    told = (TOLD.findall(path.read_bytes()) for path in into.rglob("*.jsonl"))
    known = frozenset(each.decode() for found in told for each in found)
    short = commit[:COMMIT_DIGITS]
    return Expected(submission, suite, entrants, short, recorded, days, known)


def today() -> float:
    """Seconds since 1970 by this machine's clock, which did not run the submission."""
    return time.time()


def read(artifact: Path, expected: Expected) -> Iterator[Result]:
    """Every line of every file; ValueError at the first thing that is not as it must be."""
    entrants, suite = len(expected.entrants), expected.suite
    paths = sorted(islice(artifact.rglob("*"), 2 * MOST_FILES + 1))
    if len(paths) > 2 * MOST_FILES:
        raise ValueError(f"more than {2 * MOST_FILES} files and folders")
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
                result = record.parse(raw)
                if long := overlong(result, entrants, suite):  # before more of them are kept
                    raise ValueError(long)
                yield result
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path.name!r}:{number}: {error}") from error


def faults(results: Sequence[Result], expected: Expected) -> list[str]:
    """Every reason not to believe them."""
    if not results:
        return ["the artifact holds no record"]
    reasons = []
    same = ("run", "date", "machine")
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
    for result in results:
        words = f"{result.entry} on {result.config}"
        reasons += [f"{words}: {why}" for why in _of_one(result, expected)]
    return reasons


def made_anew(results: Sequence[Result], expected: Expected) -> tuple[list[Result], list[str]]:
    """The rows made again from what was measured and asked; why they are no run's."""
    taken, reasons, suite = [], [], expected.suite
    for config in dict.fromkeys(r.config for r in results):
        rows = {r.entry: r for r in results if r.config == config}
        first = next(iter(rows.values()))
        cases = _drawn(first.secret, suite) if first.case.hidden else suite.cases
        case = next((case for case in cases if case.name == config), None)
        if case is None or not rows.keys() <= expected.entrants.keys():
            reasons.append(f"{config}: no shape of the suite, or an entry that is none of this run")
            continue
        facts = asked_facts(suite, results[0].machine, first.integrity, expected.commit)
        asked = Asked(case, facts, expected.entrants, suite.against, suite.against)
        again, faults = audited(rows, asked, suite)
        taken += again.values()
        reasons += [
            f"{entry} on {config}: {why}" for entry, why in (*faults, *record.misread(again))
        ]
    return taken, reasons


def _of_run(result: Result, expected: Expected) -> list[str]:
    """What all rows share: when it ran, as what, and on which chip."""
    part, machine = part_of(result.machine), result.machine
    mine = record.whole(h for h in expected.recorded if h.entry == expected.submission)
    newest = max((head.date for head in mine if head.gpu == result.gpu), default="")
    checks = {
        f"date {result.date} is not of {' to '.join(expected.days)}": (
            expected.days[0] <= result.date <= expected.days[1]
        ),
        f"date {result.date} is not after its last record's, {newest}": result.date > newest,
        f"{machine.gpu} with {machine.sms} SMs of {machine.capability} is no GPU of "
        "harness/measure/gpu_specs.py: what it can do at most is not known": (
            part is not None and machine.gpu in part.names
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


def _of_one(result: Result, expected: Expected) -> list[str]:
    """What the audit does not ask: it takes no place of others', is new, and stood behind walls."""
    mine, passed = result.entry == expected.submission, result.status is Status.PASSED
    checks = {
        f"{result.status.value}, a verdict on a baseline: the machine's fault, not the submission's": (
            mine or _leaves_the_board(result, expected.entrants.get(result.entry))
        ),
        "its secret was told before": result.secret not in expected.secrets,
        f"{result.integrity[:20]!r}: not judged behind walls": not passed
        or bool(BEHIND_WALLS.fullmatch(result.integrity)),
        "no speed-up over the suite's baseline": not passed or result.speedup is not None,
    }
    return [why for why, fine in checks.items() if not fine]


def _leaves_the_board(result: Result, baseline: Entrant | None) -> bool:
    """Whether a baseline's row takes nothing from the board's: it passed, or says nothing of it."""
    if result.status is Status.UNSUPPORTED:
        return baseline is not None and bool(baseline.manifest.claims.refusal(result.case))
    return result.status is Status.PASSED or result.status in NO_VERDICT


if __name__ == "__main__":
    sys.exit(main())
