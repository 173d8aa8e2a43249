"""A request → one run here and now, or a campaign where its placement says."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from harness.campaign.placement import Placement, run_campaign
from harness.catalog.request import Request
from harness.cli.campaign_view import CampaignView
from harness.cli.output import Output
from harness.cli.terminal import Terminal
from harness.engine.session import execute
from harness.process.text import printed_as_it_is
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
    if placement and isinstance(view, CampaignView):
        run_campaign(request, placement, results, save, view)
    else:
        execute(request, save, view)


def replay_flags(request: Request, results: Path) -> dict[str, str]:
    """Entry → what `replay` is told beside its name: the source's path, the records' folder."""
    flags = {}
    homes = request.root / "submissions", request.root / "baselines"  # where a name leads
    for entrant in request.entrants:
        found = ""
        path = f"./{os.path.relpath(entrant.place)}"  # with no / it were a name
        if entrant.place.parent not in homes:
            told = printed_as_it_is(path) and "," not in path  # which would cut it
            found = f" -s {shlex.quote(path if told else '/dev/null/…')}"  # where nothing lies
        if results.resolve() != (request.root / "results").resolve():
            shorter = min(os.path.relpath(results), str(results), key=len)
            found += f" --results {shlex.quote(shorter)}"
        flags[entrant.name] = found
    return flags
