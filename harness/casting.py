"""Who sits where: a seat with its own folders for every entrant, the null kernel and the pace."""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.bench import Seat
from harness.isolate import Jail
from harness.null import null_entrant
from harness.problems import Problem
from harness.registry import find_entrants, stage
from harness.request import Request
from harness.schema import Entrant, Kind, Machine
from harness.scratch import house
from harness.state import Roles


def make_seats(request: Request, problem: Problem, device: str, scratch: Path) -> dict[str, Seat]:
    """One seat an entrant, each with a private cache and scratch folder."""
    return {
        entrant.name: make_seat(request, entrant, problem, device, scratch)
        for entrant in request.entrants
    }


def make_seat(
    request: Request, entrant: Entrant, problem: Problem, device: str, scratch: Path
) -> Seat:
    """Folders, environment and log of one entrant; its source is the staged copy of its files."""
    key = hashlib.sha256(
        f"{entrant.name}\0{entrant.source_sha256}\0{request.machine.slug}".encode()
    ).hexdigest()
    alone = (
        f"{entrant.name.replace('/', '-')}-{key[:12]}"  # no other entrant's, whatever it is called
    )
    cache, private = request.cache / "entrants" / alone, scratch / "jails" / alone
    for folder in (cache, private):
        folder.mkdir(parents=True, exist_ok=True)
    staged = request.cache / "sources" / alone
    stage(entrant, staged)
    env = worker_env(request.machine, device)
    jail = Jail(cache, private, env, staged, house(scratch), request.sandbox, request.off)
    return Seat(entrant, problem, device, jail, scratch)


def cast_roles(
    request: Request, problem: Problem, device: str, seats: dict[str, Seat], scratch: Path
) -> tuple[Roles, frozenset[str]]:
    """Seat the null kernel and, if nobody asked for it, the trusted baseline that sets the pace."""
    hidden = set()
    null = null_entrant(problem, request.suite.cases, scratch / "null")
    seats[null.name] = make_seat(request, null, problem, device, scratch)
    hidden.add(null.name)
    if request.against not in seats:
        found = find_entrants([request.against], request.root / "baselines", Kind.BASELINE, problem)
        seats[request.against] = make_seat(request, found[0], problem, device, scratch)
        hidden.add(request.against)
    pace = request.against
    if seats[pace].entrant.kind is not Kind.BASELINE:
        pace = request.suite.against
        if pace not in seats:
            found = find_entrants([pace], request.root / "baselines", Kind.BASELINE, problem)
            seats[pace] = make_seat(request, found[0], problem, device, scratch)
            hidden.add(pace)
    return Roles(against=request.against, pace=pace, null=null.name), frozenset(hidden)


def worker_env(machine: Machine, device: str) -> dict[str, str]:
    """Which GPU the workers see; without one Triton interprets."""
    if device == "cuda":
        return gpu_env(machine)
    return {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def gpu_env(machine: Machine) -> dict[str, str]:
    """Show children the one GPU of this run."""
    return {"CUDA_VISIBLE_DEVICES": machine.uuid} if machine.has_gpu else {}
