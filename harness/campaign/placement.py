"""A campaign of one request: where its units run and how many at once, as the flags say."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import PROTOCOL
from harness.board import record
from harness.board.record import VERDICT, weight
from harness.campaign.campaign import Campaign, View
from harness.campaign.executor import Engine
from harness.campaign.unit import Asked, plan_units
from harness.catalog.request import Request
from harness.errors import HarnessError, UsageError
from harness.process.sandbox import readable
from harness.process.sandbox.folders import is_own
from harness.schema import Machine, Result

REMOTE = ("ray", "slurm")


@dataclass(frozen=True)
class Placement:
    """The units of one request, on one kind of executor."""

    executor: str = "local"  # local, ray or slurm
    gpus: int | None = None  # at once; None: all there are
    first_gpu: int = 0  # NVML's index, where one is enough
    per_unit: int = 1  # entrants that share a run
    resume: bool = False  # leave out what is recorded
    builders: int = 0  # builds ahead on CPUs, at once
    sku: str = ""  # only such GPUs: a folder of results/
    gpu_memory_gib: float = 0.0  # only GPUs with at least this
    address: str | None = None  # of the Ray cluster; None: RAY_ADDRESS
    slurm: tuple[str, ...] = ()  # options of sbatch, KEY=VALUE
    slurm_folder: Path | None = None

    def sku_of(self, request: Request) -> str:
        """The kind of GPU that all units land on; empty: any (clusters, CPU suites)."""
        here = self.executor not in REMOTE and request.suite.device == "gpu"
        return self.sku or (request.machine.slug if here else "")

    def folder_of(self, request: Request) -> str:
        """Folder of results/ where this machine kind's records are."""
        if self.sku:
            return self.sku
        if self.executor in REMOTE and request.suite.device == "gpu":
            hint = "--sku NAME, a folder of results/, for example nvidia-h200"
            raise UsageError(f"--engine {self.executor} --resume: which kind of GPU?", hint)
        return request.machine.slug if request.machine.has_gpu else "cpu"

    def make_executor(self, request: Request) -> Engine:
        """Who places the units; torch, Ray and submitit are imported where they are needed only."""
        readable.make_absolute()
        on_cpu, kind = request.suite.device == "cpu", self.sku_of(request)
        if self.executor == "ray":
            from harness.campaign.ray import RayCluster

            return RayCluster(self.address, self.gpus, on_cpu=on_cpu)
        if self.executor == "slurm":
            from harness.campaign.slurm import Slurm

            if not self.slurm_folder:  # jobs unpickle what lies there
                hint = "--slurm-folder DIR, of yours alone"
                raise UsageError("--engine slurm: no project here that holds a .slurm", hint)
            return Slurm(self.slurm_folder, list(self.slurm), self.gpus)
        from harness.campaign.local import Local
        from harness.campaign.node import choose_gpus

        if on_cpu:
            return Local(["none"] * (self.gpus or 1))

        def fits(machine: Machine) -> bool:
            return machine.slug == kind and machine.memory_gib >= self.gpu_memory_gib

        return Local(choose_gpus(self.gpus, self.first_gpu, fits), self.builders)


def run_campaign(
    request: Request,
    placement: Placement,
    results: Path,
    save: Callable[[Result], None],
    view: View,
) -> None:
    """All units of `request`; raises HarnessError where some died on every attempt."""
    if placement.gpus and request.suite.device == "cpu":
        said = f"suite '{request.suite.name}' runs without a GPU, {placement.gpus} units at once"
        view.note(f"--gpus {placement.gpus}: {said}")
    folder = placement.folder_of(request) if placement.resume else ""
    known = recorded_in(results, request, folder) if folder else set()
    units = plan_units(
        request,
        per_unit=placement.per_unit,
        recorded=known.__contains__,
        sku=placement.sku_of(request),
        gpu_memory_gib=placement.gpu_memory_gib,
    )
    if placement.resume:
        left = sum(len(unit.names) * len(unit.request.cases) for unit in units)
        own = [e for e in request.entrants if e.name != request.baseline] or request.entrants
        asked = len(own) * len(request.asked.cases)  # the baseline that rides along not counted
        view.note(f"--resume: {left} of {asked} still to be recorded")
    if units:
        executor = placement.make_executor(request)
        # Ray would place them beside who schedules, and Slurm gives each a job
        ahead = placement.executor == "local" and request.suite.device == "gpu"
        builders = placement.builders if ahead else 0
        if lost := Campaign(executor, units, save, view, builders).run():
            said = f"{lost} units died on every attempt; their rows say HARNESS_ERROR and why"
            raise HarnessError(said, "the same command with --resume tries them again")


def recorded_in(results: Path, request: Request, slug: str) -> set[Asked]:
    """What stands recorded with a verdict, for this suite and protocol on this kind of machine."""
    if not is_own(results / slug, results):
        return set()
    found, _ = record.heads(results / slug)
    board = (request.suite.sha256, PROTOCOL)
    asked = {(one.name, one.source_sha256, *board) for one in request.entrants}
    return {
        (head.entry, head.source_sha256, head.config)
        for head in record.newest(found)  # as boards count
        if (head.entry, head.source_sha256, head.suite_sha256, head.protocol) in asked
        and weight(head) == VERDICT
        and record.whole([head])
    }
