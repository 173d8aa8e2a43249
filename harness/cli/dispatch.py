"""Flags → one run here and now, or a campaign on an engine."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from harness import PROTOCOL
from harness.board import record
from harness.board.rank import NO_VERDICT
from harness.campaign.campaign import Campaign
from harness.campaign.devices import choose_gpus
from harness.campaign.executor import Engine
from harness.campaign.unit import Asked, plan_units
from harness.catalog.request import Request
from harness.cli.campaign_view import Rack
from harness.cli.terminal import Terminal
from harness.engine.session import execute
from harness.errors import HarnessError, UsageError
from harness.process import prestart
from harness.schema import Machine, Result

REMOTE = ("ray", "slurm")
RACERS = 12  # of one unit, where nobody says: their processes must fit onto one GPU
#: Any of these makes a campaign of a run.
MANY = tuple(flag.removeprefix("--").replace("-", "_") for flag in prestart.MANY)


def conduct(
    args: argparse.Namespace,
    request: Request,
    save: Callable[[Result], None],
    observer: Terminal,
) -> None:
    """Carry out `request`: as one run, or cut into units if a flag asks for many GPUs or --resume."""
    observer.replay_flags = replay_flags(args, request)
    if not isinstance(observer, Rack):
        execute(request, save, observer)
        return
    known = recorded_in(args.results, request, kind_of(args, request)) if args.resume else set()
    units = plan_units(
        request,
        per_unit=args.per_unit or (1 if args.race is None else RACERS),
        recorded=known.__contains__,
        sku=sku_of(args, request),
        gpu_memory_gib=args.gpu_memory or 0.0,
    )
    if args.resume:
        left = sum(len(unit.names) * len(unit.cases) for unit in units)
        observer.note(f"--resume: {left} of {rows_asked(request)} still to be recorded")
    if units:
        engine = make_engine(args, request)
        builders = 0 if request.suite.device == "cpu" else args.builders
        lost = Campaign(engine, units, save, observer, builders).run()
        if lost:
            raise HarnessError(
                f"{lost} units died on every attempt; their rows say HARNESS_ERROR and why",
                "the same command with --resume tries them again",
            )


def replay_flags(args: argparse.Namespace, request: Request) -> dict[str, str]:
    """Entry → what `replay` must be told beside its name: the source's path, the records' folder."""
    flags = {}
    for entrant in request.entrants:
        found = ""
        if not entrant.folder.is_relative_to(request.root):
            named = (entrant.folder / "manifest.yaml").exists()
            path = entrant.folder if named else entrant.entry_path
            found = f" -s {shlex.quote(os.path.relpath(path))}"
        if args.results.resolve() != (request.root / "results").resolve():
            found += f" --results {shlex.quote(os.path.relpath(args.results))}"
        flags[entrant.name] = found
    return flags


def is_campaign(args: argparse.Namespace) -> bool:
    """Whether any flag speaks of more than one run."""
    return any(getattr(args, name, None) for name in MANY)


def rows_asked(request: Request) -> int:
    """How many (entrant, case) were asked for, the baseline that rides along not counted."""
    own = [e for e in request.entrants if e.name != request.against] or request.entrants
    return len(own) * len(request.suite.cases)


def sku_of(args: argparse.Namespace, request: Request) -> str:
    """The kind of GPU that all units of this campaign land on; empty: any (clusters, CPU suites)."""
    here = args.engine not in REMOTE and request.suite.device == "gpu"
    return str(args.sku or (request.machine.slug if here else ""))


def kind_of(args: argparse.Namespace, request: Request) -> str:
    """Folder of results/ where this machine kind's records lie."""
    if args.sku:
        return str(args.sku)
    if args.engine in REMOTE and request.suite.device == "gpu":
        raise UsageError(
            f"--engine {args.engine} --resume: which kind of GPU?",
            "--sku NAME, a folder of results/, for example nvidia-h200",
        )
    return request.machine.slug if request.machine.has_gpu else "cpu"


def recorded_in(results: Path, request: Request, slug: str) -> set[Asked]:
    """What stands recorded with a verdict, for this suite and protocol on this kind of machine."""
    if not (results / slug).is_dir():
        return set()
    found, _ = record.heads(results / slug)
    silent = {status.value for status in NO_VERDICT}
    return {
        (head.entry, head.source_sha256, head.config)
        for head in found
        if head.suite_sha256 == request.suite.sha256
        and head.protocol == PROTOCOL
        and head.status not in silent
    }


def make_engine(args: argparse.Namespace, request: Request) -> Engine:
    """The engine that the flags name."""
    count = None if args.gpus in (None, "all") else int(args.gpus)
    if args.engine == "ray":
        from harness.campaign.ray import RayCluster

        return RayCluster(args.address, count, on_cpu=request.suite.device == "cpu")
    if args.engine == "slurm":
        from harness.campaign.slurm import Slurm

        return Slurm(args.slurm_folder, args.slurm or [], count)
    from harness.campaign.local import Local

    if request.suite.device == "cpu":
        return Local(["none"] * (count or 1))
    kind, memory_gib = sku_of(args, request), args.gpu_memory or 0.0
    if args.gpus is None and args.gpu:
        count = 1

    def fits(machine: Machine) -> bool:
        return machine.slug == kind and machine.memory_gib >= memory_gib

    return Local(choose_gpus(count, args.gpu or 0, fits), args.builders)


def default_builders() -> int:
    """A quarter of the cores, at most eight: the runs' own processes need theirs."""
    return min(8, (os.cpu_count() or 1) // 4)
