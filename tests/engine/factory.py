"""Workers that are what they are in a run, but for their processes: those are pretended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from harness.engine.processes.worker_process import WorkerProcess
from harness.problems import get_problem
from harness.schema import Entrant, Kind, Manifest


class Pretended(WorkerProcess):
    """A worker whose process says nothing and does nothing; `ended`: whether anybody ended one."""

    ended = False

    def start(self, place: int = 0) -> None:
        self.starts += 1
        self.held.clear()
        self.ended_for = None
        self._child = pretended_child()

    def end(self) -> None:
        self.ended = True

    def becomes(self, child: Any = None, builder: Any = None) -> Pretended:
        """The same with these processes."""
        self._child, self.builder = child, builder
        return self


def worker(
    name: str, kind: Kind = Kind.SUBMISSION, source: Path = Path("/x"), running: bool = True
) -> Pretended:
    """A worker with its first process and its buffers, if it is `running`."""
    entrant = Entrant(
        name=name, kind=kind, folder=source, manifest=Manifest(name=name), source_sha256="0"
    )
    jail: Any = SimpleNamespace(source=source)
    made = Pretended(entrant, get_problem("attention_forward"), "cpu", jail)
    if running:
        made.start()
        made.attached = True
    return made


def pretended_child() -> Any:
    """A process that runs, has printed nothing and does as it is told."""
    child = MagicMock(group=None, pid=1, alive=True, held_s=0.0)
    child.line.fileno.return_value = 3
    child.ending.return_value, child.log_tail.return_value = "", ""
    child.ran_paused.return_value, child.log.full = "", ""
    return child
