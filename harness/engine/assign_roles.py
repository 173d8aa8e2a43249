"""Who sits where: a worker with folders of its own for every entrant, the null kernel and the control."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping, Set
from pathlib import Path

from harness.catalog.entrants import find_entrants, stage
from harness.catalog.null_kernel import null_entrant
from harness.catalog.request import Request
from harness.engine.run_state import Roles
from harness.engine.worker_process import WorkerProcess
from harness.errors import HarnessError
from harness.measure.machine import minor_of
from harness.problems import Problem
from harness.process.child import Jail
from harness.process.sandbox import namespaces, system_files, usage
from harness.process.sandbox.removal import remove_tree
from harness.process.sandbox.usage import DISK_FILES
from harness.process.scratch import house
from harness.schema import Entrant, Kind, Machine

ASIDE = ".aside-"  # what is being removed


def make_workers(
    request: Request, problem: Problem, device: str, scratch: Path
) -> dict[str, WorkerProcess]:
    """One worker an entrant, each with a private cache and scratch folder."""
    workers: dict[str, WorkerProcess] = {}
    for entrant in request.entrants:
        workers[entrant.name] = make_worker(request, entrant, problem, device, scratch, workers)
    return workers


def make_worker(
    request: Request,
    entrant: Entrant,
    problem: Problem,
    device: str,
    scratch: Path,
    workers: Mapping[str, WorkerProcess],
) -> WorkerProcess:
    """Folders, environment and log of one entrant; its source is the staged copy of its files.

    workers: those of the run so far, none of whose users it becomes. Where the folders cannot be
    made, the worker says why: its entry fails, and nobody else's.
    """
    key = hashlib.sha256(
        f"{entrant.name}\0{entrant.source_sha256}\0{request.machine.slug}".encode()
    ).hexdigest()
    uid = (
        _user(key, {worker.jail.uid for worker in workers.values()})
        if request.sandbox == 2
        else None
    )
    # No other entrant's, whatever it is called.
    alone = f"{entrant.name.replace('/', '-')}-{key[:12]}"
    cache, private = request.cache / "entrants" / alone, scratch / "jails" / alone
    staged = request.cache / "sources" / alone
    unmade = ""
    try:
        private.mkdir(parents=True, exist_ok=True)
        own_folder(cache, os.geteuid() if uid is None else uid, request.suite.limits.disk_gib)
        stage(entrant, staged)
    except (OSError, HarnessError) as cause:
        unmade = f"its folders could not be made: {getattr(cause, 'message', cause)}"
    jail = Jail(
        cache=cache,
        scratch=private,
        env=worker_env(request.machine, device),
        source=staged,
        house=house(scratch),
        level=request.sandbox,
        uid=uid,
        devices=gpu_devices(request.machine, device),
        memory_bytes=int(request.suite.limits.memory_gib * 2**30),
        root=request.root,
    )
    return WorkerProcess(entrant, problem, device, jail, unmade)


def _user(key: str, taken: Set[int | None]) -> int | None:
    """The user of an entrant: sources can be written until their key gives that of a rival."""
    uid = namespaces.user_of(key)
    while uid is not None and uid in taken:
        key = hashlib.sha256(key.encode()).hexdigest()
        uid = namespaces.user_of(key)
    return uid


def own_folder(folder: Path, uid: int, most_gib: float) -> None:
    """Make `folder` for `uid`; what another user left there, or too much, is removed first.

    It is put aside before: what cannot be removed is in nobody's way.
    """
    if folder.exists():
        most = int(most_gib * 2**30)
        size, files = usage.folder_size(folder, most, DISK_FILES)
        if folder.stat().st_uid != uid or size > most or files > DISK_FILES:
            folder.rename(folder.with_name(f"{ASIDE}{secrets.token_hex(8)}"))
            for aside in folder.parent.glob(f"{ASIDE}*"):
                remove_tree(aside)
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, uid, uid)


def gpu_devices(machine: Machine, device: str) -> tuple[Path, ...]:
    """The nodes of the one GPU of this run; none on a CPU."""
    if device != "cuda":
        return ()
    return tuple(system_files.gpu_nodes(minor_of(machine)))


def assign_roles(
    request: Request,
    problem: Problem,
    device: str,
    workers: dict[str, WorkerProcess],
    scratch: Path,
) -> tuple[Roles, frozenset[str]]:
    """Add the null kernel and, if nobody asked for it, the trusted baseline that is the control."""
    hidden = set()
    null = null_entrant(problem, request.suite.cases, scratch / "null")
    workers[null.name] = make_worker(request, null, problem, device, scratch, workers)
    hidden.add(null.name)
    if request.against not in workers:
        found = find_entrants([request.against], request.root / "baselines", Kind.BASELINE, problem)
        workers[request.against] = make_worker(request, found[0], problem, device, scratch, workers)
        hidden.add(request.against)
    control = request.against
    if workers[control].entrant.kind is not Kind.BASELINE:
        control = request.suite.against
        if control not in workers:
            found = find_entrants([control], request.root / "baselines", Kind.BASELINE, problem)
            workers[control] = make_worker(request, found[0], problem, device, scratch, workers)
            hidden.add(control)
    return Roles(against=request.against, control=control, null=null.name), frozenset(hidden)


def worker_env(machine: Machine, device: str) -> dict[str, str]:
    """Which GPU the workers see; without one Triton interprets."""
    if device == "cuda":
        return gpu_env(machine)
    return {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


def gpu_env(machine: Machine) -> dict[str, str]:
    """Show children the one GPU of this run."""
    return {"CUDA_VISIBLE_DEVICES": machine.uuid} if machine.has_gpu else {}
