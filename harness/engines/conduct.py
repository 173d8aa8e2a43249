"""Flags → one run here and now, or a campaign on an engine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from harness import PROTOCOL, early, record
from harness.engines.base import Engine
from harness.engines.campaign import Campaign
from harness.engines.devices import choose_gpus
from harness.engines.unit import Asked, plan_units
from harness.errors import HarnessError, UsageError
from harness.launch import execute
from harness.rank import NO_VERDICT
from harness.report.rack import Rack
from harness.report.terminal import Terminal
from harness.request import Request
from harness.schema import Machine, Result

REMOTE = ("ray", "slurm")
RACERS = 12  # of one unit, where nobody says: their processes must fit onto one GPU
#: Any of these makes a campaign of a run.
MANY = tuple(flag.removeprefix("--").replace("-", "_") for flag in early.MANY)


def conduct(
    args: argparse.Namespace,
    request: Request,
    save: Callable[[Result], None],
    observer: Terminal,
) -> None:
    """Carry out `request`: as one run, or cut into units if a flag asks for many GPUs or --resume."""
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
        from harness.engines.ray_cluster import RayCluster

        return RayCluster(args.address, count, on_cpu=request.suite.device == "cpu")
    if args.engine == "slurm":
        from harness.engines.slurm import Slurm

        return Slurm(args.slurm_folder, args.slurm or [], count)
    from harness.engines.local import Local

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
