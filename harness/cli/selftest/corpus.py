"""The harness tried on its own cheaters and honest controls: what came through, what stopped it.

A specimen is a part of a file of tests/corpus (harness/cli/selftest/specimen.py), unfolded into
a folder with an `expect.yaml`. A cheater is `accepted` if its row is PASSED without the excuse that
its `expect.yaml` allows (an honest time, a class, no orphan left); an honest control is `flagged`
if its row is not PASSED.
"""

import contextlib
import functools
import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from harness.board import rivals
from harness.board.record import NO_VERDICT
from harness.catalog.entrants import find_entrants, load_entrant
from harness.catalog.request import Request
from harness.catalog.suites import load_suite
from harness.catalog.yaml_model import load_model
from harness.cli.selftest.specimen import axes_of, unfold
from harness.engine.events import Observer
from harness.engine.session import execute
from harness.errors import HarnessError, SubmissionError, SuiteError
from harness.problems import PROBLEMS, Problem, get_problem
from harness.process import prestart, process_tree
from harness.process.project import HOME
from harness.process.sandbox.folders import remove_tree
from harness.schema import (
    Case,
    Entrant,
    Frozen,
    Kind,
    Limits,
    Machine,
    Manifest,
    Result,
    Status,
    Suite,
)

TRUE_TIME = "its time is the true one"


class Expectation(Frozen):
    """expect.yaml: what must come of a specimen, and why."""

    status: tuple[Status, ...]
    needs_gpu: bool = False
    needs_cpu: bool = False  # would take minutes on the shape that a GPU is given
    seen: str = ""  # cheaters: where the exploit was seen
    defence: str = ""  # cheaters: what must stop it, a Defence or a structural one
    exploit: str = ""
    why: str = ""  # honest controls: what could be mistaken for cheating
    partners: tuple[str, ...] = ()  # cheaters that must be entrants of the same run
    min_latency_ms: float = 0.0  # PASSED is no success for the cheater if it tells at least this
    min_burst_ms: float = 0.0  # nor if it tells at least this in every single burst
    numerics_class: str = ""  # PASSED is no success in this class
    work_class: tuple[str, ...] = ()  # nor with kernels of this class
    all_blocks: bool = False  # nor with all samples taken
    no_orphans: bool = False  # nor if nothing of it is left running
    slower_on_hidden: bool = False  # nor if its row says that official shapes are its fast ones
    neutral: str = ""  # why PASSED is harmless at all
    dtype: str = "fp16"
    axes: Literal["", "gqa", "chunk", "packed"] = ""  # what its shape has beyond the usual
    slow: bool = False  # waits for a deadline
    beside: tuple[str, ...] = ()  # honest controls of the same run, which must pass all the same
    level: int = 0  # the least sandbox level at which it ends as foreseen
    plant_environment: dict[str, str] = Field(default={})


@dataclass(frozen=True)
class Specimen:
    """One folder."""

    folder: Path
    honest: bool
    expect: Expectation
    problem: str  # what it pretends to compute

    @property
    def name(self) -> str:
        """Folder name."""
        return self.folder.name


@dataclass(frozen=True)
class Outcome:
    """What came of one specimen."""

    specimen: Specimen
    result: Result | None
    verdict: str  # stopped | accepted | passed | flagged | surprise | untried
    by: str

    @property
    def ok(self) -> bool:
        """As `expect.yaml` says."""
        return self.verdict in ("stopped", "passed")

    def as_json(self) -> dict[str, object]:
        """One row of the table."""
        expect = self.specimen.expect
        return {
            "name": self.specimen.name,
            "kind": "honest" if self.specimen.honest else "cheater",
            "verdict": self.verdict,
            "by": self.by,
            "status": self.result.status.value if self.result else None,
            "reason": self.result.reason if self.result else "",
            "defence": expect.defence,
            "needs_gpu": expect.needs_gpu,
            "expected": [status.value for status in expect.status],
        }


@functools.cache  # they stay unfolded while this process lives
def load_corpus(root: Path = HOME) -> tuple[Specimen, ...]:
    """All specimens, cheaters first."""
    found = []
    for kind in ("cheaters", "honest"):
        home = Path(tempfile.mkdtemp(dir=_home().name))
        paths = sorted((root / "tests" / "corpus" / kind).glob("*.py"))
        for folder in sorted(folder for path in paths for folder in unfold(path, home)):
            expect = load_model(folder / "expect.yaml", Expectation, SuiteError)
            found.append(Specimen(folder, kind == "honest", expect, _problem_of(folder)))
    return tuple(found)


def honest_control(name: str) -> Path:
    """Folder of the honest control `name`."""
    return next(s.folder for s in load_corpus() if s.honest and s.name == name)


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    """Where specimens are unfolded: in the checkout, which some want to reach from there."""
    build = HOME / "build"  # git sees nothing of it
    with contextlib.suppress(OSError):
        build.mkdir(exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="corpus-", dir=build)
    return tempfile.TemporaryDirectory(prefix="attnboard-corpus-")


def _problem_of(folder: Path) -> str:
    """What a specimen computes; a manifest that cannot be read, on purpose, says nothing of it."""
    with contextlib.suppress(SubmissionError):
        return load_model(folder / "manifest.yaml", Manifest, SubmissionError).problem
    return next(iter(PROBLEMS))


def suite_for(problem: Problem, gpu: bool, expect: Expectation) -> Suite:
    """One shape; bursts of two, so that a first and a second call differ.

    On a GPU it is large enough that plain PyTorch waits for the GPU and not for its own launches:
    what lies between two calls counts on the judge's clock.
    """
    axes, hidden = expect.axes, expect.slower_on_hidden
    batch, heads, seqlen, headdim = (2, 16, 4096, 64) if gpu else (1, 2, 64, 64)
    case = Case.model_validate(
        {"name": "selftest", "batch": batch, "heads": heads, "seqlen": seqlen}
        | {"headdim": headdim, "dtype": expect.dtype, "burst": 2}
        | axes_of(axes, heads, seqlen)
    )
    host_gib = 8 if gpu else 2  # a CUDA context alone takes two
    limits = Limits(
        import_s=90, first_call_s=30, burst_s=15, memory_gib=host_gib, gpu_memory_gib=24
    )
    if expect.slow:
        short = {"import_s": 15, "first_call_s": 4, "burst_s": 4, "entrant_s": 20}
        limits = limits.model_copy(update=short)
    control = load_suite(problem.suites[1], HOME / "configs").against  # runs with and without a GPU
    return Suite(
        name="selftest",
        problem=problem.name,
        device="gpu" if gpu else "cpu",
        cases=(case,),
        baselines=(control, "sdpa_efficient" if gpu else "sdpa_math") if hidden else (control,),
        against=control,
        hidden=4 if hidden else 0,
        blocks=6,
        warmup_blocks=1,
        limits=limits,
    )


def run_batch(
    specimens: Sequence[Specimen],
    machine: Machine,
    level: int,
    row: Callable[[Result], None] = lambda result: None,
    only_check: bool = False,
) -> list[Outcome]:
    """One run over `specimens`; every one of them has an outcome.

    only_check: nobody is timed, and who gets through the checks is `untried`.
    """
    gpu = machine.has_gpu
    problem = get_problem(specimens[0].problem)
    suite = suite_for(problem, gpu, specimens[0].expect)
    partners = [s.folder.parent / name for s in specimens for name in s.expect.partners]
    neighbours = [honest_control(name) for s in specimens for name in s.expect.beside]
    folders = dict.fromkeys([*(s.folder for s in specimens), *partners, *neighbours])
    entrants, refused = _loaded(list(folders), problem)
    control = find_entrants(suite.baselines, HOME / "baselines", Kind.BASELINE, problem)
    told: list[Result] = []  # hidden shapes' too
    if gpu:
        prestart.start_next(2)  # this one's, and the next one's, which imports torch meanwhile
    before = set(process_tree.children(os.getpid()))
    with contextlib.ExitStack() as stack:
        cache = Path(tempfile.mkdtemp(prefix="attnboard-selftest-"))
        stack.callback(remove_tree, cache)  # specimens write into it
        stack.enter_context(planted(specimens))
        request = Request(
            suite=suite,
            machine=machine if gpu else machine.without_gpu(),
            entrants=(*entrants, *control),
            baseline=suite.against,
            cache=cache,
            sandbox=level,
            only_check=only_check,
        )

        def save(result: Result) -> None:
            told.append(result)
            row(result)

        with contextlib.suppress(HarnessError):  # the rows say so
            execute(request, save, Observer())
        left = end_orphans(before)
    results = {result.entry: result for result in told if not result.case.hidden}
    slower = rivals.told_of(told)
    return [
        refusal(specimen, refused[specimen.name])
        if specimen.name in refused
        else beside(judge(specimen, results.get(specimen.name), suite, left, slower), results)
        for specimen in specimens
    ]


def _loaded(folders: Sequence[Path], problem: Problem) -> tuple[list[Entrant], dict[str, str]]:
    """Who can be read, and why the others cannot, by the name of their folder."""
    entrants: list[Entrant] = []
    refused: dict[str, str] = {}
    for folder in folders:
        try:
            entrants.append(load_entrant(folder, Kind.SUBMISSION, problem))
        except SubmissionError as cause:  # noqa: PERF203 - of many, a few
            refused[folder.name] = cause.message
    return entrants, refused


def refusal(specimen: Specimen, why: str) -> Outcome:
    """Of one that was not even read: as good as INVALID_SUBMISSION."""
    foreseen = not specimen.honest and Status.INVALID_SUBMISSION in specimen.expect.status
    why_ = why.replace(str(specimen.folder), specimen.name)[:120]
    return Outcome(specimen, None, "stopped" if foreseen else "surprise", f"not read: {why_}")


def beside(outcome: Outcome, results: Mapping[str, Result]) -> Outcome:
    """The same, unless a neighbour lost its row by it: then it won, however it ended."""
    for name in outcome.specimen.expect.beside:
        row = results.get(name)
        if row is None or row.status is not Status.PASSED:
            lost = "no row" if row is None else status_line(row)
            return replace(outcome, verdict="accepted", by=f"{name} beside it: {lost}")
    return outcome


def runs_on(specimen: Specimen, machine: Machine) -> bool:
    """Whether this machine can show anything about it."""
    return not (specimen.expect.needs_cpu if machine.has_gpu else specimen.expect.needs_gpu)


@contextlib.contextmanager
def planted(specimens: Sequence[Specimen]) -> Iterator[None]:
    """Put what a specimen wants to steal into our environment; remove what it left in memory."""
    wanted = {k: v for s in specimens for k, v in s.expect.plant_environment.items()}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        for path in Path("/dev/shm").glob("attnboard_planted_*"):
            path.unlink(missing_ok=True)


def end_orphans(before: set[int]) -> int:
    """How many processes a run left behind; they are ended here."""
    left = [pid for pid in process_tree.children(os.getpid()) if pid not in before]
    for pid in left:
        process_tree.signal_tree(pid, signal.SIGKILL)
    process_tree.sweep(before)
    return len(left)


def judge(
    specimen: Specimen,
    result: Result | None,
    suite: Suite,
    orphans: int,
    slower: Collection[str] = (),
) -> Outcome:
    """Compare one row with its expect.yaml."""
    if result is None:
        return Outcome(specimen, None, "untried", "no row")
    expect, status = specimen.expect, result.status
    if specimen.honest:
        if status is Status.PASSED:
            return Outcome(specimen, result, "passed", "")
        return Outcome(specimen, result, "flagged", status_line(result))
    if status is not Status.PASSED:
        verdict = "stopped" if status in expect.status else "surprise"
        if status in NO_VERDICT and verdict == "surprise":
            verdict = "accepted"  # it broke something and got away without blame
        return Outcome(specimen, result, verdict, status_line(result))
    excuse = harmless(expect, result, suite, orphans, specimen.name in slower)
    verdict = "stopped" if excuse else "accepted"
    return Outcome(specimen, result, verdict, excuse or status_line(result))


def harmless(
    expect: Expectation, result: Result, suite: Suite, orphans: int, slower: bool = False
) -> str:
    """Why a PASSED row is no success for its cheater, or an empty string."""
    shortest_ms = min((sample.latency_ms for sample in result.samples), default=0.0)
    work = rivals.classify(result.kernels, result.likeness, result.case.dtype)
    wanted_class = expect.numerics_class
    checks = [
        (expect.min_latency_ms, (result.latency_ms or 0) >= expect.min_latency_ms, TRUE_TIME),
        (expect.min_burst_ms, shortest_ms >= expect.min_burst_ms, f"{TRUE_TIME} in every burst"),
        (wanted_class, result.numerics_class == wanted_class, f"class {wanted_class}"),
        (expect.work_class, work in expect.work_class, f"class {' or '.join(expect.work_class)}"),
        (expect.all_blocks, result.blocks >= suite.blocks, "all samples were taken"),
        (expect.no_orphans, orphans == 0, "nothing of it was left running"),
        (expect.slower_on_hidden, slower, "its row says: faster on official shapes"),
    ]
    wanted = [(held, text) for asked, held, text in checks if asked]
    if wanted and all(held for held, _ in wanted):
        return "; ".join(text for _, text in wanted)
    return expect.neutral if not wanted else ""


def status_line(result: Result) -> str:
    """Status and the first line of its reason."""
    first = result.reason.splitlines()[0] if result.reason else ""
    return f"{result.status.value} ({first[:90]})" if first else result.status.value
