"""`profile NAME`: counters of ncu on one call of each case, a roofline picture, the likely limiter in words.

It runs the submission outside the sandbox and without the judge: profile what you trust.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import profile_report
from harness.commands import build as build_command
from harness.errors import EXIT_OK, UnavailableError
from harness.isolate import ROOT
from harness.machine import inspect_machine
from harness.problems import get_problem
from harness.registry import find_entrants
from harness.schema import Case, Entrant, Kind, Machine, Suite
from harness.suite import load_suite

#: Device memory bandwidth by NVML name, TB/s, vendor datasheets; only the slope of the picture's memory roof.
MEMORY_TB_S = {"H200": 4.8, "H100": 3.35, "A100": 2.0}
SM_MHZ = 1830  # clock behind the datasheet peak of an H100 SXM and an H200


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("profile", help="ncu counters, roofline, likely limiter")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--suite", default="fa3")
    parser.add_argument("--kernel", default=".*", metavar="REGEX", help="only kernels of this name")
    parser.add_argument("--out", type=Path, default=Path("roofline"), metavar="STEM")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 with counters or with what static data allow; 3 if there is neither."""
    suite = load_suite(args.suite, ROOT / "configs")
    problem = get_problem(suite.problem)
    entrants = find_entrants([args.name], ROOT / "submissions", Kind.SUBMISSION, problem)
    machine = inspect_machine()
    return max(profile(entrant, suite, machine, args) for entrant in entrants)


def profile(entrant: Entrant, suite: Suite, machine: Machine, args: argparse.Namespace) -> int:
    """Every case of `suite` that `entrant` claims; a ladder's rungs get a picture each."""
    stem = args.out
    if "/" in entrant.name:
        stem = stem.with_name(f"{stem.name}_{entrant.name.replace('/', '-')}")
    try:
        if not machine.has_gpu:
            raise profile_report.ProfileUnavailableError("no GPU here, so no counters")
        for case in suite.cases:
            if not entrant.manifest.claims.refusal(case):
                one(entrant, case, machine, args.kernel, stem)
    except profile_report.ProfileUnavailableError as cause:
        print(f"UNAVAILABLE: {cause}")
        if entrant.manifest.language != "cuda":
            raise UnavailableError(
                "nothing static to show either", "run.py build, for CUDA"
            ) from None
        return build_command.one(entrant, None, fail_on_spills=False)
    return EXIT_OK


def one(entrant: Entrant, case: Case, machine: Machine, kernel: str, stem: Path) -> None:
    """Counters and picture of one case."""
    manifest = entrant.manifest.model_dump_json()
    command = profile_report.command_for(entrant.folder, manifest, case.shape, causal=case.causal)
    profiles = profile_report.parse_ncu(profile_report.run_ncu(command, kernel))
    print(f"{entrant.name} · {case.name}\n{profile_report.render(profiles)}")
    heaviest = max(profiles, key=lambda profile: profile.duration_us)
    problem = get_problem(entrant.manifest.problem)
    flops = problem.flops(case)
    point = profile_report.Point(
        f"{entrant.name} {case.name}", flops, heaviest.dram_bytes or 1.0, heaviest.duration_us / 1e6
    )
    memory = next((v for name, v in MEMORY_TB_S.items() if name in machine.gpu), 3.35)
    per_exp = flops / problem.exponentials(case)  # 4 headdim in a forward
    roofs = profile_report.ceilings(round(per_exp / 4), machine.sms, SM_MHZ, memory)
    for path in profile_report.draw_roofline(
        [point], roofs, stem.with_name(f"{stem.name}_{case.name}")
    ):
        print(f"picture: {path}")
