"""`replay RUN ENTRY CONFIG`: ask an entry again what it got wrong, same inputs bit for bit.

A record tells the secret of its inputs and, where an output was wrong, what they were drawn from.
The judge draws them again, the entry's worker answers, and the judge looks at the same elements.
Nothing is timed and nothing recorded. `--dump FILE` keeps the inputs, what was expected and what
came, for `torch.load`.
"""

import argparse
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from harness.board import query, record
from harness.board.record import Head
from harness.board.render.text import error_map, printed, sanitize
from harness.catalog.request import Request, place_of_baseline, resolve
from harness.catalog.suites import load_suite
from harness.cli.run_options import must_fit
from harness.errors import Exit, SubmissionError, UnavailableError, UsageError, did_you_mean
from harness.problems import get_problem
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.process.project import base
from harness.process.sandbox import enter
from harness.process.text import dumps
from harness.schema import Case, Claims, Kind, Result, Status, Suite
from harness.schema.common import AXES
from harness.schema.mismatch import Mismatch

LEAST_ROOM_BYTES = 1 << 28  # of a burst: shapes of checks may be larger than a small suite's own


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add = parser.add_argument
    add("replayed", metavar="RUN", help="a run, or how its name begins")
    add("entry", metavar="ENTRY")
    add("config", metavar="CONFIG")
    add("--dump", type=Path, metavar="FILE", help="keep inputs, expected and got for torch.load")
    add("--submission", "-s", metavar="PATH", help="where its source lies (default: as ENTRY says)")
    add("--json", action="store_true", help="one JSON document")
    query.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """0: right this time; 1: wrong again; 2: no such row; 3: its inputs cannot be drawn here."""
    old = find(args)
    found = mismatch_of(old)
    dump = _writable(args.dump) if args.dump else None
    request = request_of(old, found, args.submission)
    if not args.json:
        print("\n".join(_asked(request, old, found)), flush=True)
    report, sha256, log = ask(request, old, found, dump)
    code = Exit.OK if report.status is Status.PASSED else Exit.SUBMISSION_FAILED
    if args.json:
        now = report.mismatch and json.loads(report.mismatch.model_dump_json())  # NaN as a text
        document = {
            "status": report.status.value,
            "message": report.message,
            "log_tail": log,
            "same_source": request.entrants[0].source_sha256 == old.source_sha256,
            "same_inputs": sha256 == found.inputs_sha256,
            "same_numbers": _same_numbers(found, report),
            "mismatch": now,
        }
        print(dumps(document))
        return code
    print(_inputs(request, old, found, sha256))
    print("\n".join([*_answered(found, report), *printed(log)]))
    if dump:
        got = f", x['got']['{found.output}']" if report.error else ""
        print(f"{args.dump}: call {found.call} of the burst")
        expected = f"x['expected']['{found.output}']"
        print(f"next: x = torch.load('{args.dump}'): x['inputs'], {expected}{got}")
    elif report.status is not Status.PASSED:
        print("next: the same with --dump x.pt, which keeps the tensors")
    return code


def find(args: argparse.Namespace) -> Result:
    """The row that RUN, ENTRY and CONFIG name; UsageError with the nearest one otherwise."""
    mine = query.of_entry(query.heads(args, args.entry)[0], args.entry)
    meant = query.begun(args.replayed, (h.run for h in mine))
    in_run = [h for h in mine if h.run in meant]
    _must_be(in_run, "run", args.replayed, (h.run for h in mine))
    chosen = [h for h in in_run if h.config == args.config]
    _must_be(chosen, "config", args.config, (h.config for h in in_run))
    runs = sorted({h.run for h in chosen})
    if len(runs) > 1:
        raise UsageError(f"run '{args.replayed}' begins {len(runs)} runs", f"one of {runs[-5:]}")
    return record.read(chosen[-1:])[0][0]


def mismatch_of(result: Result) -> Mismatch:
    """Where its output was wrong; UnavailableError if the row or the secret does not tell."""
    if result.mismatch and result.secret:
        return result.mismatch
    why = "the record tells of no wrong output to ask for again"
    if result.mismatch:
        why = "its run ended before it told the secret of its inputs"
    who = f"{result.entry} on {result.config}: {result.status.value}"
    raise UnavailableError(f"{who}: {why}", f"python run.py --submission {result.entry}")


def request_of(old: Result, found: Mismatch, source: str | None) -> Request:
    """A run of the entry alone, on the one shape; on the kind of device that drew the inputs."""
    from harness.measure.machine import inspect_machine

    machine = inspect_machine()
    if old.gpu == "cpu":
        machine = machine.without_gpu()
    elif not machine.has_gpu:
        said = f"its inputs were drawn on {sanitize(old.gpu)}, and NVML finds no GPU here"
        raise UnavailableError(said, "run this command on such a GPU")
    suite = _suite(old, found)
    must_fit(suite, machine)
    mine, theirs = [source or old.entry], list[str]()
    if old.kind is Kind.BASELINE:
        mine, theirs = [], [source or str(place_of_baseline(old.entry, base() / "baselines"))]
    try:
        level = enter.usual_level()
        request = resolve(mine, theirs, suite, machine, suite.against, base(), level)
    except SubmissionError as cause:
        hint = cause.hint if source else f"{cause.hint}; or -s PATH, where its source lies"
        raise type(cause)(cause.message, hint) from None
    if len(request.entrants) != 1:
        raise UsageError(f"'{old.entry}' names several", "-s PATH, where its source lies")
    return request


def ask(
    request: Request, old: Result, found: Mismatch, dump: Path | None
) -> tuple[BurstReport, str, str]:
    """The burst once more: the judge's report, the SHA-256 of its inputs, what was printed."""
    from harness.engine.burst import Question, run_burst
    from harness.engine.events import Observer
    from harness.engine.session import facts_of, opened

    (entrant,), (case,), draw = request.entrants, request.suite.cases, found.draw
    probe = _probe(case, entrant.manifest.claims, old, found)
    question = Question(probe, draw.label, draw.calls, draw.whole, replayed=True)
    with opened(request, lambda result: None, Observer(), facts_of(request)) as run:
        known = run.record(entrant.name, case)
        run.judge.replay(old.secret)
        limit_s = run.limits.first_call_s
        report = None if known.status else run_burst(run, entrant.name, question, limit_s)
        if report is None:  # it did not come as far as its inputs
            report = BurstReport(status=known.status or Status.CRASHED, message=known.reason)
            run.judge.inputs(question.probe, draw.label, draw.calls, draw.whole, True, False)
        log = known.log_tail or run.workers[entrant.name].printed()
        return report, run.judge.dump(str(dump or ""), found.call), log


def _suite(old: Result, found: Mismatch) -> Suite:
    """One case of the wrong burst's shape, beside the usual baseline of its problem."""
    usual = load_suite(get_problem(old.problem).suites[old.gpu == "cpu"], base() / "configs")
    shape = zip(("batch", "heads", "seqlen", "headdim"), found.draw.shape, strict=True)
    axes = {name: getattr(found.draw, name) for name in AXES}
    burst = {"causal": found.draw.kwargs.get("causal"), "burst": found.draw.calls}
    try:
        case = Case.model_validate(old.case.model_dump() | {**dict(shape), **axes, **burst})
    except ValidationError as error:
        raise _no_draw(old, error.errors()[0]["msg"]) from None
    if case.burst_bytes > 4 * max(old.case.burst_bytes, LEAST_ROOM_BYTES):
        raise _no_draw(old, f"{case.burst_bytes >> 30} GiB, more than its own shape takes")
    return usual.model_copy(update={"cases": (case,), "name": old.suite, "baselines": ()})


def _probe(case: Case, claims: Claims, old: Result, found: Mismatch) -> Probe:
    """What is asked again; UnavailableError unless some burst of this shape asks so."""
    problem, draw = get_problem(old.problem), found.draw
    if why := claims.refusal(case):
        raise _no_draw(old, f"a shape beyond its claims: {why}")
    asked = [*problem.probes(case, Claims(lse=claims.lse)), *problem.audits(case)]
    if draw.distribution not in {probe.distribution for probe in asked}:
        raise _no_draw(old, f"{draw.distribution} inputs")
    own = problem.kwargs(case)  # its mask and lengths
    each = ({**probe.kwargs, **own, "sm_scale": probe.kwargs["sm_scale"]} for probe in asked)
    if (kwargs := next((one for one in each if one == draw.kwargs), None)) is None:
        raise _no_draw(old, f"a call with {', '.join(f'{k}={v}' for k, v in draw.kwargs.items())}")
    if found.call >= draw.calls:
        raise _no_draw(old, f"call {found.call} of {draw.calls}")
    return Probe(case, draw.distribution, kwargs)


def _no_draw(old: Result, why: str) -> UnavailableError:
    said = f"{old.entry} on {old.config}: its record tells of inputs that no run draws: "
    hint = "python run.py rank tells which lines are damaged; measure it again"
    return UnavailableError(said + sanitize(why), hint)


def _asked(request: Request, old: Result, found: Mismatch) -> list[str]:
    (entrant,), (case,), draw = request.entrants, request.suite.cases, found.draw
    what = "check" if draw.whole else "timed burst"
    probe = _probe(case, entrant.manifest.claims, old, found)
    who = f"{old.entry} · {old.config} of run {sanitize(old.run, 80)}"
    same = entrant.source_sha256 == old.source_sha256
    return [
        f"{who}: a {what} of {draw.calls} calls, {probe.label}",
        f"source: {'the same' if same else 'changed since'}",
    ]


def _same_numbers(found: Mismatch, report: BurstReport) -> bool:
    """As text: NaN is NaN."""
    now = report.mismatch
    return now is not None and str(now.model_dump()) == str(found.model_dump())


def _inputs(request: Request, old: Result, found: Mismatch, sha256: str) -> str:
    if sha256 == found.inputs_sha256:
        return f"inputs: the same bits (sha256 {sha256[:16]})"
    each = (old.machine, request.machine)
    there, here = (f"{sanitize(m.gpu)}, torch {sanitize(m.torch)}" for m in each)
    return f"inputs: other bits than in the run: drawn on {there} there, on {here} here"


def _answered(found: Mismatch, report: BurstReport) -> list[str]:
    now, why = report.mismatch, sanitize(report.message)
    lines = [f"{report.status.value} ({why})" if why else report.status.value]
    lines += [f"  {drawn}" for drawn in error_map(now)] if now else []
    if _same_numbers(found, report):
        lines.append("the same elements are wrong as in the run, by the same numbers")
    elif report.status is not Status.PASSED:
        lines.append(f"not as in the run: {found.words()}")
    return lines


def _must_be(found: Sequence[Head], what: str, word: str, known: Iterable[str]) -> None:
    names = sorted({sanitize(name, 80) for name in known})
    if not found:
        hint = did_you_mean(word, names) or f"{what}s there: {', '.join(names[-5:])}"
        raise UsageError(f"{what} '{sanitize(word, 80)}': no record of it", hint)


def _writable(path: Path) -> Path:
    """`path` in full, tried before anything starts.

    A link, or a file with a second name, is refused: the current folder may be a hand-in.
    """
    hint = "name another file with --dump"
    try:
        known = os.lstat(path) if os.path.lexists(path) else None
        if known and not (stat.S_ISREG(known.st_mode) and known.st_nlink == 1):
            raise UsageError(f"{path}: there already, and no plain file of one name", hint)
        with tempfile.TemporaryFile(dir=path.parent):
            return path.parent.resolve() / path.name
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint) from None
