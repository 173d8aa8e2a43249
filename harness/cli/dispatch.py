"""A request → one run here and now, or a campaign where its placement says."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from harness import PROTOCOL
from harness.board import record
from harness.board.record import NO_VERDICT
from harness.campaign.campaign import Campaign
from harness.campaign.placement import Placement, rows_asked
from harness.campaign.unit import Asked, plan_units
from harness.catalog.request import Request
from harness.cli.campaign_view import CampaignView
from harness.cli.output import Output
from harness.cli.terminal import Terminal
from harness.engine.session import execute
from harness.errors import HarnessError
from harness.schema import Result


def open_view(placement: Placement | None, *, json: bool, brief: bool) -> Terminal:
    """The live view, of one run or of many units; with --json it leaves stdout alone."""
    if isinstance(sys.stdout, Output):
        sys.stdout.only_a_view = not json  # its rows are in the records
    view = Terminal if placement is None else CampaignView
    return view(quiet_stdout=json, brief=brief)


def dispatch(
    request: Request,
    placement: Placement | None,
    results: Path,
    save: Callable[[Result], None],
    view: Terminal,
) -> None:
    """Carry out `request`: as one run, or cut into units where `placement` wants many."""
    view.replay_flags = replay_flags(request, results)
    match placement, view:
        case Placement(), CampaignView():
            run_campaign(request, placement, results, save, view)
        case _:
            execute(request, save, view)


def run_campaign(
    request: Request,
    placement: Placement,
    results: Path,
    save: Callable[[Result], None],
    view: CampaignView,
) -> None:
    """All units of `request`; raises HarnessError where some died on every attempt."""
    if placement.gpus and request.suite.device == "cpu":
        view.note(
            f"--gpus {placement.gpus}: suite '{request.suite.name}' runs without a GPU,"
            f" {placement.gpus} units at once"
        )
    sku, per_unit = placement.sku_of(request), placement.entrants_a_unit(request)
    folder = placement.folder_of(request) if placement.resume else ""
    known = recorded_in(results, request, folder) if folder else set()
    units = plan_units(
        request,
        per_unit=per_unit,
        recorded=known.__contains__,
        sku=sku,
        gpu_memory_gib=placement.gpu_memory_gib,
    )
    if placement.resume:
        left = sum(len(unit.names) * len(unit.cases) for unit in units)
        view.note(f"--resume: {left} of {rows_asked(request)} still to be recorded")
    if units:
        executor = placement.make_executor(request)
        builders = 0 if request.suite.device == "cpu" else placement.builders
        lost = Campaign(executor, units, save, view, builders).run()
        if lost:
            raise HarnessError(
                f"{lost} units died on every attempt; their rows say HARNESS_ERROR and why",
                "the same command with --resume tries them again",
            )


def replay_flags(request: Request, results: Path) -> dict[str, str]:
    """Entry → what `replay` is told beside its name: the source's path, the records' folder."""
    flags = {}
    for entrant in request.entrants:
        found = ""
        if not entrant.folder.is_relative_to(request.root):
            named = (entrant.folder / "manifest.yaml").exists()
            path = entrant.folder if named else entrant.entry_path
            found = f" -s {shlex.quote(os.path.relpath(path))}"
        if results.resolve() != (request.root / "results").resolve():
            found += f" --results {shlex.quote(os.path.relpath(results))}"
        flags[entrant.name] = found
    return flags


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
