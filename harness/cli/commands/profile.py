"""`profile NAME`: ncu's counters on one call of each case, a roofline, the likely limiter in words.

It runs the submission outside the sandbox and without the judge: profile what you trust.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.catalog.entrants import find_entrants
from harness.catalog.suites import load_suite
from harness.cli.commands import build as build_command
from harness.cli.commands import roofline_picture
from harness.errors import EXIT_OK, UnavailableError
from harness.measure.machine import inspect_machine
from harness.measure.roofline import ceilings
from harness.problems import get_problem
from harness.process.project import HOME, base
from harness.schema import Case, Entrant, Kind, Machine, Suite
from harness.worker.cuda import counters

# Warm-up first (compilation, allocation), then one call inside the range that ncu records.
PROGRAM = """
import os, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
os.environ.setdefault("ATTNBOARD_CACHE", tempfile.mkdtemp())
import torch
import importlib
from harness.problems import get_problem
from harness.problems.base import by_name, keywords
from harness.schema import Case, Manifest
from harness.worker.load import load_function
folder, manifest = Path(sys.argv[2]), Manifest.model_validate_json(sys.argv[3])
case = Case.model_validate_json(sys.argv[4])
problem = get_problem(manifest.problem)
function, kwargs = load_function(folder, manifest, problem.function), problem.kwargs(case)
function = by_name(function, keywords(problem.inputs(case)))
tensors, device = importlib.import_module(problem.tensors_module), torch.device("cuda")
torch.set_grad_enabled(False)
inputs = tensors.make_inputs(case, "normal", torch.Generator(device).manual_seed(0), device, kwargs)
for _ in range(2):
    function(*inputs, **kwargs)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
function(*inputs, **kwargs)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--suite", default="fa3")
    parser.add_argument("--kernel", default=".*", metavar="REGEX", help="only kernels of this name")
    parser.add_argument("--out", type=Path, default=Path("roofline"), metavar="STEM")


def run(args: argparse.Namespace) -> int:
    """0 with counters or with what static data allow; 3 if there is neither."""
    suite = load_suite(args.suite, base() / "configs")
    problem = get_problem(suite.problem)
    entrants = find_entrants([args.name], base() / "submissions", Kind.SUBMISSION, problem)
    machine = inspect_machine()
    return max(profile(entrant, suite, machine, args) for entrant in entrants)


def profile(entrant: Entrant, suite: Suite, machine: Machine, args: argparse.Namespace) -> int:
    """Every case of `suite` that `entrant` claims; a ladder's rungs get a picture each."""
    stem = args.out
    if "/" in entrant.name:
        stem = stem.with_name(f"{stem.name}_{entrant.name.replace('/', '-')}")
    try:
        if not machine.has_gpu:
            raise counters.ProfileUnavailableError("no GPU here, so no counters")
        for case in suite.cases:
            if not entrant.manifest.claims.refusal(case):
                one(entrant, case, machine, args.kernel, stem)
    except counters.ProfileUnavailableError as cause:
        print(f"UNAVAILABLE: {cause}")
        if entrant.manifest.language != "cuda":
            raise UnavailableError(
                "nothing static to show either",
                "a CUDA submission: python run.py build cuda_hopper",
            ) from None
        build_command.note_walls()
        told: list[dict[str, object]] = []
        code = build_command.one(entrant, None, fail_on_spills=False, told=told)
        print("\n".join(str(each["text"]) for each in told))
        return code
    return EXIT_OK


def one(entrant: Entrant, case: Case, machine: Machine, kernel: str, stem: Path) -> None:
    """Counters and picture of one case."""
    manifest = entrant.manifest.model_dump_json()
    command = command_for(entrant.folder, manifest, case)
    profiles = counters.parse_ncu(counters.run_ncu(command, kernel))
    print(f"{entrant.name} · {case.name}\n{counters.render(profiles)}")
    heaviest = max(profiles, key=lambda profile: profile.duration_us)
    problem = get_problem(entrant.manifest.problem)
    flops = problem.flops(case)
    point = roofline_picture.Point(
        f"{entrant.name} {case.name}", flops, heaviest.dram_bytes or 1.0, heaviest.duration_us / 1e6
    )
    roofs = roofline_picture.roofs(
        ceilings(case, machine, 0, problem), flops, problem.io_bytes(case)
    )
    if roofs is None:
        print("no picture: add this GPU to PARTS in harness/measure/gpu_specs.py")
        return
    for path in roofline_picture.draw_roofline(
        [point], roofs, stem.with_name(f"{stem.name}_{case.name}")
    ):
        print(f"picture: {path}")


def command_for(folder: Path, manifest: str, case: Case) -> list[str]:
    """A command that calls a submission once inside a profiler range; pass it to `run_ncu`.

    manifest: its manifest as JSON. It runs outside the sandbox and without the judge: profile what
    you trust.
    """
    words = [str(HOME), str(folder), manifest, case.model_dump_json()]
    return [sys.executable, "-c", PROGRAM, *words]
