"""`build NAME`: what the compiler made of a .cu submission, by kernel and architecture; no GPU.

A stranger's source reaches a compiler behind the walls alone: a `// build:` line goes to nvcc, an
`#include` opens any file that the compiler may read. So the report is made by a process like a
run's builder (harness/worker/cuda/resources.py) from a copy of what was hashed, in folders that go
with it, watched like one, and only what it tells comes back: typed, bounded in number and size.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from harness.board import query
from harness.catalog.entrants import gather
from harness.catalog.launch_spec import parse_launch
from harness.catalog.request import Request
from harness.engine import session
from harness.engine.assign_roles import Crew
from harness.engine.guards.resource_watch import ResourceWatch
from harness.errors import Exit, UsageError, WireError
from harness.measure.telemetry import Monitor
from harness.problems import get_problem
from harness.process import wire
from harness.process.child import Child
from harness.process.project import base
from harness.process.sandbox import enter
from harness.process.sandbox.folders import remove_tree
from harness.process.text import dumps, plain_text, shown
from harness.schema import Case, Entrant, Kind, Limits, Machine, Suite
from harness.worker.cuda import resources
from harness.worker.cuda.nvrtc import CudaSourceError
from harness.worker.cuda.resources import KernelReport

NOTHING = "nothing was compiled"  # nobody's fault: it is for newer GPUs, or has no .cu file
GUIDE = "see docs/write-a-cuda-kernel.md"
#: What ends an entry with exit 3 → what to do: a machine may lack what one of many asks for.
LACKING = {NOTHING: GUIDE, "UNAVAILABLE": "pip install '.[cuda]'", "NO_FOLDERS": "make room there"}
MOST_TOLD = 2 << 20  # bytes of JSON on an entry's kernels; each counts as 2 KiB at least
CASE = Case(name="none", batch=1, heads=1, seqlen=1, headdim=64)  # nothing is called
SUITE = Suite(name="build", cases=(CASE,))
_KERNEL = TypeAdapter(KernelReport)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument(
        "--arch", action="append", choices=resources.ARCHS, help="default: all it claims"
    )
    parser.add_argument("--fail-on-spills", action="store_true", help="exit 1 if a kernel spills")
    query.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """0 if all compiled; 1 if one did not or breaks a promise, 3 if there is nothing to compile."""
    entrants, refused = gather(args.names, base() / "submissions", Kind.SUBMISSION, None)
    for why in refused:
        print(plain_text(f"left out: {why}"), file=sys.stderr)
    if not (cuda := [entrant for entrant in entrants if entrant.manifest.language == "cuda"]):
        raise UsageError("nothing to compile: no CUDA submission among these", "python run.py list")
    entered = note_walls(entrants)
    made = (one(each, args.arch, args.fail_on_spills, entered) for each in cuda)
    codes, builds = zip(*made, strict=True)
    print(dumps({"builds": builds}) if args.json else "\n".join(b["text"] for b in builds))
    return int(max(*codes, 1 if refused else 0, key=(0, Exit.UNAVAILABLE, 1).index))


def note_walls(entrants: Iterable[Entrant]) -> tuple[Path, ...]:
    """Say what keeps the walls around the compiler low, and what they shut; what of ours."""
    sandbox = enter.usual_level()
    request = Request(SUITE, Machine(), tuple(entrants), "", base(), sandbox=sandbox)
    session.note_walls(request, partial(print, file=sys.stderr))
    return (*request.whole().entered, request.cache.resolve())


def one(
    entrant: Entrant, archs: list[str] | None, fail_on_spills: bool, entered: tuple[Path, ...] = ()
) -> tuple[int, dict[str, Any]]:
    """The exit code of one submission and what became of it; `text` is how a person reads it."""
    manifest = entrant.manifest
    launch = manifest.launch and parse_launch(manifest.launch, str(entrant.folder)).model_dump()
    try:
        asked = archs or resources.archs_for(manifest.needs.compute_capability)
        if not (reports := report(entrant, launch, asked, limits(), enter.usual_level(), entered)):
            known = ", ".join(asked or resources.ARCHS)
            raise CudaSourceError(NOTHING, f"no .cu file of it holds a kernel for {known}")
    except CudaSourceError as cause:
        line = f":{cause.line}" if cause.line else ""  # of some faults the compiler names none
        place = f"{cause.file}{line}: " if cause.file else ""
        hint = LACKING.get(cause.status) or ("mend that line" if cause.line else GUIDE)
        reason = plain_text(f"{cause.status}: {place}{cause.message}")
        told = reason.replace("\n", "\n  | ")  # the compiler's words may look like ours
        print(f"{entrant.name}: {told}\n  next: {hint}", file=sys.stderr)
        failed = {"entry": entrant.name, "error": reason, "kernels": [], "text": entrant.name}
        return Exit.UNAVAILABLE if cause.status in LACKING else Exit.SUBMISSION_FAILED, failed
    kernels = [asdict(r) | {"warnings": r.warnings, "broken": r.broken} for r in reports]
    text = f"{entrant.name}\n{resources.render(reports)}"
    spills = any(each.spill_store_bytes or each.spill_load_bytes for each in reports)
    wrong = any(each.broken for each in reports) or (spills and fail_on_spills)
    made = {"entry": entrant.name, "error": "", "kernels": kernels, "text": text}
    return Exit.SUBMISSION_FAILED if wrong else Exit.OK, made


def report(
    entrant: Entrant,
    launch: dict[str, Any] | None,
    archs: Sequence[str],
    limits: Limits,
    level: int,
    entered: tuple[Path, ...] = (),
) -> list[KernelReport]:
    """The kernels of `entrant`, for every architecture; `launch` belongs to a plain .cu.

    entered: whose folders stay shut besides. Raises CudaSourceError with the compiler's words, or
    UNAVAILABLE without one.
    """
    problem = get_problem(entrant.manifest.problem)
    with contextlib.ExitStack() as stack:
        own = Path(tempfile.mkdtemp(prefix="attnboard-build-"))
        stack.callback(remove_tree, own)
        suite = SUITE.model_copy(update={"limits": limits})
        request = Request(suite, Machine(), (entrant,), "", base(), own, level, entered=entered)
        worker = Crew(request, problem, "cpu", own).workers[entrant.name]
        if worker.unmade:
            raise CudaSourceError("NO_FOLDERS", f"under {own.parent}: {worker.unmade}")
        source = f"{worker.jail.source}/"
        asked = {"folder": source, "entry": entrant.manifest.entry}
        child = Child("harness.worker.cuda.resources", [], worker.jail)
        stack.callback(child.end)
        worker.builder = child
        watch = ResourceWatch([worker], limits, Monitor(Machine()))
        stack.callback(watch.stopping.set)
        watch.start()
        try:
            wire.send(child.line, {**asked, "launch": launch, "archs": list(archs)})
            return _kernels_from(child, time.monotonic() + limits.build_s)
        except wire.PeerSilent:
            raise CudaSourceError("TIMED_OUT", f"not built after {limits.build_s:.0f} s") from None
        except WireError as cause:
            if worker.ended_for:
                status, why = worker.ended_for
                raise CudaSourceError(status.value, why) from None
            ending = str(cause) if child.alive else f"the compiler's process {child.ending()}"
            raise CudaSourceError("CRASHED", f"{ending}\n{child.log_tail()}") from None
        except CudaSourceError as cause:  # the author knows nothing of the copy
            words = cause.message.replace(source, ""), cause.file.replace(source, "")
            raise CudaSourceError(cause.status, *words, cause.line) from None


def limits() -> Limits:
    """Those of a run; of this machine's memory no more than half, as nobody prepared it for one."""
    half_gib = max(1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 31)
    return Limits(memory_gib=min(Limits().memory_gib, half_gib))


def _kernels_from(child: Child, deadline: float) -> list[KernelReport]:
    """Its answers until the last one; what is no answer ends it."""
    found, told = list[KernelReport](), 0
    while told <= MOST_TOLD:
        message = wire.receive(child.line, deadline - time.monotonic())
        if (op := message.get("op")) == "done":
            return found
        if op == "failed":
            status, file = (_text(message.get(key)) for key in ("status", "file"))
            said, line = plain_text(str(message.get("message")))[:8000], message.get("line")
            line = line if isinstance(line, int) and 0 <= line < 10**9 else 0
            raise CudaSourceError(status[:40], said, file, line)
        found.append(_kernel(message.get("kernel")))
        told += max(2048, len(dumps(asdict(found[-1]))))
    raise CudaSourceError("INVALID_SUBMISSION", f"over {MOST_TOLD >> 11} kernels or too long notes")


def _kernel(message: object) -> KernelReport:
    try:
        kernel = _KERNEL.validate_python(message)
    except ValidationError as error:
        raise WireError(f"no report of a kernel: {error.errors()[0]['msg']}") from None
    clean: dict[str, Any] = {key: _text(v) for key, v in vars(kernel).items() if type(v) is str}
    return replace(kernel, **clean, notes=tuple(map(_text, kernel.notes)))


def _text(value: object) -> str:
    return shown(plain_text(str(value)), 8000)
