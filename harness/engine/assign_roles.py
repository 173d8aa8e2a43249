"""Who takes part: a worker with folders of its own for every entrant, null kernel and control."""

import contextlib
import functools
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from harness.catalog.entrants import private_folder, stage
from harness.catalog.null_kernel import null_entrant
from harness.catalog.request import Request
from harness.engine.processes.worker_process import WorkerProcess
from harness.engine.run_state import Roles
from harness.errors import HarnessError
from harness.problems import Problem
from harness.process.child import Jail
from harness.process.forkserver import ForkServer
from harness.process.sandbox import enter, namespaces
from harness.process.sandbox.folders import DISK_FILES, LONGEST_S, counted, remove_tree
from harness.process.scratch import house, locked
from harness.schema import Entrant, Kind, Machine

ENTRANTS = "entrants"  # below the cache: a folder of each
ASIDE = ".aside-"  # what is being removed
ASIDE_S = 1.0  # for it, while others wait


class Crew:
    """The workers of one run: one an entrant, each with a private cache and scratch folder."""

    def __init__(
        self,
        request: Request,
        problem: Problem,
        device: str,
        scratch: Path,
        forkserver: ForkServer | None = None,
        nodes: Sequence[Path] = (),
    ) -> None:
        """`nodes`: of the GPU that the workers see; without one Triton interprets."""
        self.request, self.problem, self.device = request, problem, device
        self.scratch, self.forkserver = scratch, forkserver
        interpreted = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.env = gpu_env(request.machine) if device == "cuda" else interpreted
        self.nodes = tuple(nodes)
        self.workers: dict[str, WorkerProcess] = {}
        self.hidden: frozenset[str] = frozenset()  # ran, but nobody asked for a row of it
        strangers = sum(entrant.kind is Kind.SUBMISSION for entrant in request.entrants)
        self.share = enter.share_of_processes(strangers)
        for entrant in request.entrants:
            self.add(entrant)

    def assign_roles(self) -> Roles:
        """Add the null kernel and, if nobody asked for them, the headline and the control."""
        request = self.request
        null = null_entrant(self.problem, request.suite.cases, self.scratch / "null")
        for entrant in (null, *request.trusted):
            self.add(entrant)
        self.hidden = frozenset({null.name, *(entrant.name for entrant in request.trusted)})
        return Roles(baseline=request.baseline, control=request.control, null=null.name)

    def add(self, entrant: Entrant) -> None:
        """Folders and environment of one entrant; its source is the staged copy of its files.

        It becomes the user of none of the others. Where the folders cannot be made, the worker says
        why: its entry fails, and nobody else's.
        """
        request, unmade = self.request, ""
        alone, key = private_folder(entrant.name, entrant.source_sha256, request.machine.slug)
        taken = {worker.jail.uid for worker in self.workers.values()}
        uid = _user(_salt(request.cache) + key, taken) if request.sandbox == 2 else None
        private = self.scratch / "jails" / alone
        # Beside a run at another level, where it has another user, each keeps a folder of its own.
        cache = request.cache / ENTRANTS / (alone if uid is None else f"{alone}-{uid}")
        staged = request.cache / "sources" / alone
        us, most_gib = os.geteuid(), request.suite.limits.disk_gib
        folders = {cache: us if uid is None else uid, private: us}
        make_room = functools.partial(_make_room, folders, most_gib)
        try:
            for folder, user in folders.items():
                own_folder(folder, user, most_gib)
            stage(entrant, staged)
        except (OSError, HarnessError) as cause:
            unmade = f"its folders could not be made: {getattr(cause, 'message', cause)}"
        jail = Jail(
            cache=cache,
            scratch=private,
            env=self.env,
            source=staged,
            house=house(self.scratch),
            level=request.sandbox,
            uid=uid,
            devices=self.nodes,
            processes=self.share if entrant.kind is Kind.SUBMISSION else enter.Rules.processes,
            memory_bytes=int(request.suite.limits.memory_gib * 2**30),
            shut=request.shut,
        )
        self.workers[entrant.name] = WorkerProcess(
            entrant, self.problem, self.device, jail, self.forkserver, unmade, make_room
        )


@functools.cache
def _salt(cache: Path) -> str:
    """Made once for all runs of `cache`, shown to no worker: no source aims at a rival's user."""
    salt = secrets.token_hex()
    with contextlib.suppress(OSError):
        if not (cache / "salt").exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=cache, buffering=0) as made:
                made.write(salt.encode())
                os.link(made.name, cache / "salt")  # not in the place of another's
    with contextlib.suppress(OSError):
        salt = (cache / "salt").read_text(encoding="ascii") or salt
    return salt


def _user(key: str, taken: Set[int | None]) -> int | None:
    """The user of an entrant; None where there is only our own."""
    while True:
        key = hashlib.sha256(key.encode()).hexdigest()
        if (uid := namespaces.user_of(key)) is None or uid not in taken:
            return uid


def _make_room(folders: Mapping[Path, int], most_gib: float) -> bool:
    """Empty those that hold too much, and say whether one did; the next run tries again."""
    found = False
    for folder, uid in folders.items():
        with contextlib.suppress(OSError):
            found |= own_folder(folder, uid, most_gib)
    return found


def own_folder(folder: Path, uid: int, most_gib: float) -> bool:
    """Make `folder` for `uid`; what another user left there, or too much, is removed first.

    It is put aside before: what cannot be removed soon is in nobody's way until the run is over.
    While a process of another run lives there it stays, and goes when the last of them ends.
    Returns whether there was any.
    """
    most = int(most_gib * 2**30)
    size, files, _ = counted(folder, most, DISK_FILES)
    anew = size > most or files > DISK_FILES or (folder.exists() and folder.stat().st_uid != uid)
    with locked(folder, os.O_DIRECTORY) as free:
        if anew and free is not False:
            folder.rename(folder.with_name(f"{ASIDE}{secrets.token_hex(8)}"))
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, uid, uid)
    if anew:
        remove_aside(folder.parent, ASIDE_S)
    return anew


def remove_aside(folder: Path, within_s: float = LONGEST_S) -> None:
    """Remove what was put aside in `folder`, or as much of it as goes in that time."""
    deadline = time.monotonic() + within_s
    for aside in folder.glob(f"{ASIDE}*"):
        remove_tree(aside, deadline - time.monotonic())


def gpu_env(machine: Machine) -> dict[str, str]:
    """Show children the one GPU of this run."""
    return {"CUDA_VISIBLE_DEVICES": machine.uuid} if machine.has_gpu else {}
