"""`selftest`: try every known exploit and every honest control on this machine."""

import argparse
import sys
import time
from collections.abc import Sequence

from harness.cli.arguments import whole
from harness.cli.selftest import corpus as selftest_corpus
from harness.cli.selftest import plan
from harness.errors import Exit, UnavailableError, UsageError, did_you_mean
from harness.measure.machine import inspect_machine
from harness.process.project import HOME
from harness.process.sandbox.enter import usual_level
from harness.process.text import dumps
from harness.schema import Result


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="only these (default: all)")
    add("--json", action="store_true", help="one JSON document on stdout")
    add("--ablate", action="store_true", help="switch each defence off in turn")
    add("--sandbox", type=int, choices=(0, 1, 2, 3), metavar="LEVEL")
    add("--cpu", action="store_true", help="leave the GPU alone")
    add("--batch", type=whole(1), default=plan.BATCH, metavar="N", help="entrants of one run")


def run(args: argparse.Namespace) -> int:
    """0 if nothing was accepted that should not be, and nothing flagged that is honest; else 1."""
    machine = inspect_machine()
    machine = machine.without_gpu() if args.cpu else machine
    level = usual_level() if args.sandbox is None else args.sandbox
    specimens = choose(selftest_corpus.load_corpus(), args.names)
    started = time.monotonic()
    if args.ablate:
        return report_ablation(plan.ablate(specimens, machine, level, show_ablated), args.json)
    outcomes = plan.run_corpus(specimens, machine, level, show=show, size=args.batch, row=show_row)
    if args.json:
        document = {"machine": machine.gpu, "sandbox": level, **counts(outcomes)}
        print(dumps(document | {"rows": [o.as_json() for o in outcomes]}))
    else:
        print("\n".join(table(outcomes)))
        print(summary(outcomes, len(specimens), machine.gpu, level, time.monotonic() - started))
    return Exit.OK if all(outcome.ok for outcome in outcomes) else Exit.SUBMISSION_FAILED


def choose(
    corpus: Sequence[selftest_corpus.Specimen], names: Sequence[str]
) -> list[selftest_corpus.Specimen]:
    """The specimens named, or all."""
    if not corpus:
        said = f"no specimens in {HOME / 'tests'}: they are no part of an installation"
        raise UnavailableError(said, "the same in a checkout")
    known = {specimen.name: specimen for specimen in corpus}
    if odd := [name for name in names if name not in known]:
        hint = did_you_mean(odd[0], known) or "see tests/corpus/cheaters and tests/corpus/honest"
        raise UsageError(f"no specimen '{odd[0]}'", hint)
    return [known[name] for name in names] if names else list(corpus)


def show(outcome: selftest_corpus.Outcome) -> None:
    """One line as soon as it is known."""
    sign = "ok " if outcome.ok else "!! "
    print(f"{sign} {outcome.specimen.name}: {outcome.verdict} {outcome.by}", file=sys.stderr)


def show_row(result: Result) -> None:
    """The bare row, before its batch is complete."""
    latency = f" {result.latency_ms:.4g} ms" if result.latency_ms else ""
    said = f"    {result.entry}: {selftest_corpus.status_line(result)}{latency}"
    print(said, file=sys.stderr, flush=True)


def show_ablated(outcome: selftest_corpus.Outcome) -> None:
    """The same with a defence off, where to be accepted is the point."""
    print(f"{outcome.verdict:9} {outcome.specimen.name}: {outcome.by}", file=sys.stderr)


def counts(outcomes: Sequence[selftest_corpus.Outcome]) -> dict[str, int]:
    """The four numbers that matter, and what was unforeseen."""
    cheaters = [o for o in outcomes if not o.specimen.honest]
    honest = [o for o in outcomes if o.specimen.honest]
    return {
        "tried": len(cheaters),
        "accepted": sum(o.verdict == "accepted" for o in cheaters),
        "honest": len(honest),
        "flagged": sum(o.verdict != "passed" for o in honest),
        "surprises": sum(o.verdict in ("surprise", "untried") for o in cheaters),
    }


def table(outcomes: Sequence[selftest_corpus.Outcome]) -> list[str]:
    """Markdown rows."""
    rows = ["| specimen | verdict | by | defence |", "|---|---|---|---|"]
    for outcome in outcomes:
        by = outcome.by.replace("|", "\\|")
        defence = outcome.specimen.expect.defence
        rows.append(f"| {outcome.specimen.name} | {outcome.verdict} | {by} | {defence} |")
    return rows


def summary(
    outcomes: Sequence[selftest_corpus.Outcome], total: int, gpu: str, level: int, seconds: float
) -> str:
    """The last line."""
    n = counts(outcomes)
    skipped = total - len(outcomes)
    return (
        f"{n['tried']} exploits tried, {n['accepted']} accepted, "
        f"{n['surprises']} stopped otherwise than foreseen; "
        f"{n['honest']} honest, {n['flagged']} flagged; "
        f"on {gpu}, sandbox level {level}, {seconds:.0f} s"
        + (f"; {skipped} specimens need a GPU or another sandbox level" if skipped else "")
    )


def report_ablation(found: Sequence[plan.Ablation], as_json: bool) -> int:
    """Which cheaters win without which defence; a defence that nobody misses is a finding."""
    if as_json:
        rows = [{"off": a.name, "tried": a.tried, "accepted": a.accepted} for a in found]
        print(dumps({"ablations": rows}))
    else:
        print("| without | tried | then accepted |\n|---|---|---|")
        for a in found:
            print(f"| {a.name} | {len(a.tried)} | {', '.join(a.accepted) or 'nobody'} |")
    if idle := [a.name for a in found if a.tried and not a.accepted]:
        print(f"stops nobody here: {', '.join(idle)}", file=sys.stderr)
    return Exit.SUBMISSION_FAILED if idle else Exit.OK
