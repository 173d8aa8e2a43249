"""`build NAME`: what the compiler made of a .cu submission, by kernel and architecture; no GPU."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from harness.board import query
from harness.catalog.entrants import find_entrants
from harness.catalog.launch_spec import parse_launch
from harness.cli import builder
from harness.errors import EXIT_OK, EXIT_SUBMISSION_FAILED, UnavailableError, UsageError
from harness.process.project import base
from harness.process.sandbox import enter
from harness.process.text import plain_text
from harness.schema import Entrant, Kind
from harness.worker.cuda import resources
from harness.worker.cuda.nvrtc import CudaSourceError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument(
        "--arch", action="append", choices=resources.ARCHS, help="default: all it claims"
    )
    parser.add_argument("--fail-on-spills", action="store_true", help="exit 1 if a kernel spills")
    query.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """0 if all compiled; 1 if one did not, breaks a promise, or spills and that was forbidden."""
    entrants = find_entrants(args.names, base() / "submissions", Kind.SUBMISSION, None)
    cuda = [entrant for entrant in entrants if entrant.manifest.language == "cuda"]
    if not cuda:
        raise UsageError("nothing to compile: no CUDA submission among these", "python run.py list")
    note_walls()
    told: list[dict[str, object]] = []
    code = max(one(entrant, args.arch, args.fail_on_spills, told) for entrant in cuda)
    if args.json:
        print(json.dumps({"builds": told}))
    else:
        print("\n".join(str(each["text"]) for each in told))
    return code


def note_walls() -> None:
    """Say what keeps the walls around the compiler lower than they could be."""
    level, why = enter.usual()
    if why:
        kind = enter.LEVELS[level]
        print(f"the compiler runs at sandbox level {level} ({kind}), not 2: {why}", file=sys.stderr)


def one(
    entrant: Entrant, archs: list[str] | None, fail_on_spills: bool, told: list[dict[str, object]]
) -> int:
    """Add what became of one submission to `told`; `text` is how a person reads it."""
    manifest = entrant.manifest
    launch = None
    if manifest.launch is not None:
        launch = parse_launch(manifest.launch, str(entrant.folder)).model_dump()
    try:
        reports = builder.report(
            entrant,
            launch,
            archs or resources.archs_for(manifest.needs.compute_capability),
            builder.limits(),
            enter.usual_level(),
        )
    except CudaSourceError as cause:
        place = f"{cause.file}:{cause.line}: " if cause.file else ""
        reason = plain_text(f"{cause.status}: {place}{cause.message}")
        print(f"{entrant.name}: {reason}\n  next: mend that line", file=sys.stderr)
        told.append({"entry": entrant.name, "error": reason, "kernels": [], "text": entrant.name})
        return EXIT_SUBMISSION_FAILED
    except resources.BuildUnavailableError as cause:
        raise UnavailableError(f"UNAVAILABLE: {cause}", "pip install '.[cuda]'") from None
    kernels = [
        dataclasses.asdict(r) | {"warnings": r.warnings, "broken": r.broken} for r in reports
    ]
    text = f"{entrant.name}\n{resources.render(reports)}"
    told.append({"entry": entrant.name, "error": "", "kernels": kernels, "text": text})
    spills = any(report.spill_store_bytes or report.spill_load_bytes for report in reports)
    failed = any(report.broken for report in reports) or (spills and fail_on_spills)
    return EXIT_SUBMISSION_FAILED if failed else EXIT_OK
