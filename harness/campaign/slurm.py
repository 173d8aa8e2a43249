"""The engine of a SLURM cluster, through submitit: units become tasks of job arrays.

The folder is shared with the nodes. Every attempt has two files in it: `LABEL-X.unit.json`, what to
do, and `LABEL-X.events.jsonl`, which its process appends to and this side reads as it grows; X is
drawn by chance, so that no node lays anything in their place. submitit's own log of a task lies
beside them. Without `sbatch` on the PATH submitit runs the tasks as processes of this host.

Every node needs this checkout and its environment at the same path.
"""

import contextlib
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.campaign.executor import (
    MODULE,
    READ_BYTES,
    LineReader,
    Told,
    gone,
    package,
    standing_in,
)
from harness.campaign.unit import Unit, to_text
from harness.errors import UsageError
from harness.process.project import HOME
from harness.process.sandbox.folders import plain

ARRAY = 500  # units in flight when nobody says how many GPUs; sites allow 1001 by default
STATE_EVERY_S = 5.0  # files are read at every poll, job states only so often
LOOK_EVERY_S = 0.2
LAG_S = 60.0  # by which a shared file system may show the last lines later than the state
#: Options of sbatch that submitit has names of its own for.
DIRECT = ("partition", "account", "constraint", "qos", "gres", "exclude", "mem", "time", "comment")
TASK = {"nodes": 1, "tasks_per_node": 1, "cpus_per_task": 8, "timeout_min": 120}


@dataclass
class _Job:
    lines: LineReader
    job: Any
    described: Path
    events: Path
    offset: int = 0
    told_all: bool = False  # its last line was read
    done_since: float = 0.0


class Slurm:
    """`options`: KEY=VALUE for sbatch; `count`: tasks that may run at once."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        count: int | None = None,
        cluster: str | None = None,
        module: str = MODULE,
    ) -> None:
        self._submitit = submitit = package("submitit", "slurm")
        chosen = sbatch_options(options)
        self.places = self.window = count or ARRAY  # several arrays share no limit but this
        self._module = module
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._executor = submitit.AutoExecutor(folder=self._folder / "logs", cluster=cluster)
        self.on_slurm = self._executor.cluster == "slurm"
        self._executor.update_parameters(**TASK)
        if self.on_slurm:
            self._executor.update_parameters(slurm_array_parallelism=self.window, **chosen)
        self._waiting: list[Unit] = []
        self._jobs: dict[str, _Job] = {}
        self._said: list[Told] = []
        self._asked = 0.0

    # ------------------------------------------------------------------ the interface

    def submit(self, unit: Unit) -> None:
        """Keep it for the next array."""
        self._waiting.append(unit)

    def poll(self, timeout_s: float) -> list[Told]:
        """Send what waits as one array; read what the events' files have grown by."""
        self._send()
        deadline = time.monotonic() + timeout_s
        while True:
            said, self._said = self._said, []
            for job in list(self._jobs.values()):
                said += self._read(job)
            said += self._states()
            if said or time.monotonic() > deadline:
                return said
            time.sleep(LOOK_EVERY_S)

    def cancel(self, label: str) -> None:
        """scancel; the task's processes get SIGTERM and end as by Ctrl-C."""
        for unit in [unit for unit in self._waiting if unit.label == label]:
            self._waiting.remove(unit)
            self._said.append(gone(label, "cancelled before it began"))
        if label in self._jobs:
            self._jobs[label].job.cancel(check=False)
            self._asked = 0.0

    def close(self) -> None:
        """Cancel all; take away what was for the way only."""
        for label in list(self._jobs):
            self.cancel(label)

    # ------------------------------------------------------------------ what it does

    def _send(self) -> None:
        units, self._waiting = self._waiting, []
        if not units:
            return
        gpu = any(unit.needs_gpu for unit in units)
        self._executor.update_parameters(gpus_per_node=int(gpu and self.on_slurm))
        stems = [f"{unit.label}-{secrets.token_hex(8)}" for unit in units]
        with standing_in(HOME), self._executor.batch():  # -m imports from where it is started
            jobs = list(map(self._executor.submit, map(self._function, units, stems)))
        for unit, job, stem in zip(units, jobs, stems, strict=True):
            self._jobs[unit.label] = _Job(LineReader(unit), job, *self._files(stem))

    def _function(self, unit: Unit, stem: str) -> Any:
        described, events = self._files(stem)
        described.write_text(to_text(unit), encoding="utf-8")
        gpu = "auto" if unit.needs_gpu else "none"
        command = [sys.executable, "-m", self._module, "--gpu", gpu]
        command += ["--unit", str(described), "--events", str(events)]
        return self._submitit.helpers.CommandFunction(command, verbose=False, cwd=HOME)

    def _files(self, stem: str) -> tuple[Path, Path]:
        return self._folder / f"{stem}.unit.json", self._folder / f"{stem}.events.jsonl"

    def _read(self, job: _Job) -> list[Told]:
        try:
            with open(job.events, "rb", opener=plain) as file:  # nodes may not read all that we may
                file.seek(job.offset)
                data = file.read(READ_BYTES)
        except OSError:
            return []
        job.offset += len(data)
        told = job.lines.hear(data)
        job.told_all |= any(each.op == "end" for each in told)
        return told

    def _states(self) -> list[Told]:
        """Who has ended; its file is read once more before that is said."""
        if time.monotonic() - self._asked < (STATE_EVERY_S if self.on_slurm else LOOK_EVERY_S):
            return []
        said: list[Told] = []
        for label, job in list(self._jobs.items()):
            if job.job.done():
                job.done_since = job.done_since or time.monotonic()
                late = time.monotonic() - job.done_since > LAG_S  # a whole look, or it was the last
                least = job.offset + (READ_BYTES if late else 1)
                said += self._read(job)
                lacks = job.job.state == "COMPLETED" and not job.told_all and not late
                if (lacks or job.offset >= least) and job.lines.patience:
                    continue
                why = "" if job.told_all else _ending(job.job)
                said.append(gone(label, why))
                del self._jobs[label]
                for file in () if why else (job.described, job.events):
                    with contextlib.suppress(OSError):
                        file.unlink()
        self._asked = time.monotonic()
        return said


def sbatch_options(options: Sequence[str]) -> dict[str, Any]:
    """`partition=gpu` → slurm_partition; what submitit does not know goes to sbatch as it is."""
    known, other = dict[str, str](), dict[str, str]()
    for option in options:
        key, sign, value = option.partition("=")
        if not sign or not key:
            raise UsageError(f"--slurm {option}: not KEY=VALUE", "write --slurm partition=gpu")
        key = key.removeprefix("--").replace("-", "_")
        (known if key in DIRECT else other)[key] = value
    found: dict[str, Any] = {f"slurm_{key}": value for key, value in known.items()}
    return {**found, "slurm_additional_parameters": other} if other else found


def _ending(job: Any) -> str:
    """Why it told no end. Its result is a pickle that a node wrote: nobody here loads it."""
    return f"job {job.job_id} ended as {job.state}; its log: {job.paths.stderr}"
