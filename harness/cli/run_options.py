"""Flags → suite, request and placement of units. After this nobody looks at a flag of a run."""

import argparse
import fnmatch
import os
from dataclasses import replace

from harness.campaign.placement import REMOTE, Placement
from harness.catalog.entrants import ALL, ENTRIES, place_of, problem_of, split
from harness.catalog.request import Request, resolve
from harness.catalog.suites import adhoc_suite, load_suite
from harness.cli.arguments import number_in
from harness.cli.main import is_campaign
from harness.errors import SuiteError, UnavailableError, UsageError, did_you_mean
from harness.measure.machine import AUTO, inspect_machine
from harness.measure.stopping import TIME_LIMIT_S, StoppingRule
from harness.process import project
from harness.process.sandbox import enter
from harness.schema import Machine, Suite

SMALLEST_PCT, LARGEST_PCT = 0.01, 50.0
PLACING = ("sku", "gpu_memory", "slurm")  # flags that only a campaign reads
MOST_SCORES = 1 << 21  # q·k products of one call, all heads
SHAPE_FLAGS = ("headdim", "seqlen", "causal", "dtype", "batch", "heads")


def placement_of(args: argparse.Namespace) -> Placement | None:
    """Where the units of a campaign run; None: this is one run, here and now."""
    if not is_campaign(args):
        return None
    gpus = None if args.gpus in (None, "all") else int(args.gpus)
    here = args.gpu is not None and args.engine not in REMOTE
    return Placement(
        executor=args.engine or "local",
        gpus=1 if args.gpus is None and here else gpus,
        first_gpu=args.gpu or 0,
        per_unit=args.per_unit or 1,
        resume=args.resume,
        builders=args.builders,
        sku=args.sku or "",
        gpu_memory_gib=args.gpu_memory or 0.0,
        address=args.address,
        slurm=tuple(args.slurm or ()),
        slurm_folder=args.slurm_folder,
    )


def machine_of(args: argparse.Namespace) -> Machine:
    """This machine, with the GPU that was asked for."""
    machine = inspect_machine(AUTO if args.gpu is None else args.gpu)
    if args.gpu is not None and not machine.has_gpu and args.engine not in REMOTE:
        hint = "leave it out for the CPU smoke suite, or python run.py doctor"
        raise UnavailableError(f"UNAVAILABLE: --gpu {args.gpu}: NVML finds no GPU here", hint)
    return machine


def slow_here(request: Request) -> list[str]:
    """A warning for each case that takes Triton's interpreter minutes, with shapes that suit it."""
    if request.suite.device == "gpu":
        return []
    claims = [e.manifest.claims for e in request.entrants if e.manifest.language == "triton"]
    found = []
    for case in request.asked.cases:
        scores = case.batch * case.heads * sum(q * k for q, k in case.lengths)
        if scores > MOST_SCORES and not all(claim.refusal(case) for claim in claims):
            found.append(
                f"{case.name}: {scores / MOST_SCORES:.0f} times what Triton's interpreter does in a"
                " minute, on a CPU; next: Ctrl-C, then --seqlen 128 --batch 1 --heads 1"
            )
    return found


def choose_suite(args: argparse.Namespace, machine: Machine) -> Suite:
    """The suite named, or the problem's own for a GPU or for none; shape flags applied."""
    elsewhere, root = args.engine in REMOTE, project.base()
    if not (name := args.suite):
        official, without_gpu = problem_of(args.submission, root / "submissions").suites
        name = official if machine.has_gpu or elsewhere else without_gpu
    suite = load_suite(name, root / "configs")
    if suite.device == "gpu" and not machine.has_gpu and not elsewhere:
        hint = "run without --suite for the CPU smoke suite, or install the NVIDIA driver"
        said = f"UNAVAILABLE: suite '{suite.name}' needs a GPU and NVML finds none"
        raise UnavailableError(said, hint)
    if not split(args.submission):
        raise UsageError("--submission names nobody", "python run.py list submissions")
    _refuse_idle(args)
    suite = adhoc_suite(suite, **{flag: split([getattr(args, flag) or ""]) for flag in SHAPE_FLAGS})
    if not elsewhere:
        must_fit(suite, machine)
    if args.timeout:
        given = {"import_s": args.timeout, "first_call_s": args.timeout, "burst_s": args.timeout}
        suite = suite.model_copy(update={"limits": suite.limits.model_copy(update=given)})
    if args.sustained is not None:
        suite = suite.model_copy(update={"sustained_s": args.sustained})
    return suite.model_copy(update={"blocks": args.blocks}) if args.blocks else suite


def must_fit(suite: Suite, machine: Machine) -> None:
    """Raises UsageError where q, k, v and o of one burst alone are more than there is memory."""
    on_gpu = suite.device == "gpu"
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    there_gib = machine.memory_gib if on_gpu else host_bytes / 2**30
    for case in suite.cases:
        if (burst_gib := case.burst_bytes / 2**30) > there_gib > 0:
            raise UsageError(
                f"{suite.name}, {case.name}: the tensors of one burst of {case.burst} calls take"
                f" {burst_gib:,.0f} GiB, and this {'GPU' if on_gpu else 'machine'} has"
                f" {there_gib:,.0f}",
                "a smaller batch, heads, seqlen or burst there, or --batch, --heads, --seqlen",
            )


def resolve_request(args: argparse.Namespace, suite: Suite, machine: Machine) -> Request:
    """Entrants and baselines, found and read."""
    against = args.against or suite.against
    baselines = [] if args.check else _baselines(args.baselines, suite)
    on = machine if suite.device == "gpu" else machine.without_gpu()
    level = enter.usual_level() if args.sandbox is None else args.sandbox
    request = resolve(args.submission, baselines, suite, on, against, project.base(), level)
    cases = cases_named(args.only, suite)
    request = replace(request, fail_fast=args.fail_fast, only_check=args.check, cases=cases)
    return replace(request, rule=stopping_rule(args))


def _baselines(typed: str | None, suite: Suite) -> list[str]:
    """As they were typed; else the suite's, which are names, whatever the current folder holds."""
    if typed is not None:
        return [] if (names := split([typed])) == ["none"] else names
    folder = project.base() / "baselines"
    places = {name: place_of(name, folder) for name in suite.baselines if name != ALL}
    if absent := [name for name, place in places.items() if not place]:
        raise SuiteError(f"{suite.name}: no baseline '{absent[0]}'", "python run.py list baselines")
    paths = {name: str(places[name]) for name in places if "/" in name or name.endswith(ENTRIES)}
    return [paths.get(name, name) for name in suite.baselines]


def cases_named(text: str | None, suite: Suite) -> tuple[str, ...]:
    """Names of `suite`'s cases that --only asks for, each part of it a pattern; all if not given.

    Raises UsageError where a part fits no case.
    """
    known = [case.name for case in suite.cases]
    patterns = split([text or ""])
    if text is not None and not patterns:
        raise UsageError("--only names no case", f"cases of {suite.name}: {', '.join(known)}")
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            hint = did_you_mean(pattern, known) or f"cases of {suite.name}: {', '.join(known)}"
            raise UsageError(f"--only {pattern}: no case of suite '{suite.name}'", hint)
    return tuple(n for n in known if any(fnmatch.fnmatchcase(n, p) for p in patterns))


def stopping_rule(args: argparse.Namespace) -> StoppingRule:
    """When to stop measuring whom: --until, --race, --time-limit."""
    until = None if args.until is None else percent(args.until)
    if args.race is not None and args.race < 1:
        raise UsageError(f"--race {args.race}: nobody could win", "write --race 3")
    limit_s = TIME_LIMIT_S if args.time_limit is None else args.time_limit
    if not limit_s > 0:
        raise UsageError(f"--time-limit {limit_s:g}: no time at all", "seconds, e.g. 900")
    if args.time_limit is not None and until is None:
        raise UsageError("--time-limit without --until limits nothing", "add --until 0.3%")
    rule = StoppingRule(until, args.race, limit_s)
    if rule.adaptive and is_campaign(args):
        said = "--race and --until are for one run: the units of a campaign share no blocks"
        hint = "the campaign without them, then its leaders in one run with --race"
        raise UsageError(said, hint)
    return rule


def _refuse_idle(args: argparse.Namespace) -> None:
    """A flag that would do nothing is a mistake of its typist: `--sku` alone chooses no GPU."""
    many, said = is_campaign(args), "places the units of a campaign, and this is one run"
    hint = "add --gpus 1, or leave it out (docs/many-gpus.md)"
    if many:
        said = "is for one run, not for the units of a campaign"
        hint = "leave out --engine, --gpus, --per-unit and --resume"
    for flag in ("check", "fail_fast") if many else PLACING:
        if getattr(args, flag) not in (None, False):
            raise UsageError(f"--{flag.replace('_', '-')} {said}", hint)


def percent(text: str) -> float:
    """'0.3%' or '0.3' → 0.3; UsageError outside 0.01 … 50."""
    value = number_in(text.strip().removesuffix("%"))
    if not SMALLEST_PCT <= value <= LARGEST_PCT:
        raise UsageError(f"--until {text}: no resolution in percent", "write --until 0.3%")
    return value
