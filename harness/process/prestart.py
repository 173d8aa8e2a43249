"""The judge and the fork server, started before anybody knows what for: each imports torch for seconds.

`run.py` calls `begin` before its own imports, and `start_next` between two runs of --watch; `taken`
gives a run what was begun, or begins then. Neither process is told anything yet: the judge learns
problem and GPU from the engine's first message, the fork server an environment, walls and a
submission's folder with each fork; until then neither has a context on a GPU. Nothing here may
import pydantic.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.process.child import Child, bare_env
from harness.process.forkserver import ForkServer
from harness.process.project import HOME
from harness.process.sandbox import enter
from harness.process.scratch import house, scratch_folder

JUDGE: tuple[str, ...] = ("harness.judge",)  # the module to start, and its arguments
MANY = ("--engine", "--gpus", "--per-unit", "--resume")  # the units of a campaign start their own


class TrustedProcesses:
    """The scratch folder of a run, and the two processes that every run has."""

    def __init__(self) -> None:
        enter.allow_more_files()
        with contextlib.ExitStack() as stack:
            self.scratch = stack.enter_context(scratch_folder())
            self.judge = Child(JUDGE[0], JUDGE[1:], None)
            stack.callback(self.judge.end)
            home = house(self.scratch)
            self.forkserver = ForkServer(home, bare_env(home), self.scratch / "forkserver.log")
            stack.callback(self.forkserver.close)
            self._end = stack.pop_all()

    def close(self) -> None:
        """End both and remove the folder."""
        self._end.close()


_waiting: list[TrustedProcesses] = []


def begin(words: Sequence[str]) -> None:
    """Start both if the command line `words` looks like one run: a wrong guess costs two short-lived processes."""
    asks = [word.partition("=")[0] for word in words]
    one_run = bool(asks) and (asks[0] == "run" or asks[0].startswith("-") or _is_there(asks[0]))
    if one_run and not {"-h", "--help", "-V", "--version", *MANY} & set(asks):
        start_next()


def _is_there(word: str) -> bool:
    """Whether `word` may be a submission that stands in front: a path, or a name of the checkout."""
    return "/" in word or any((base / word).exists() for base in (Path(), HOME / "submissions"))


def start_next(runs: int = 1) -> None:
    """Start both for each of the next `runs` runs, as far as they do not wait already."""
    while len(_waiting) < runs:
        _waiting.append(TrustedProcesses())


@contextlib.contextmanager
def taken() -> Iterator[TrustedProcesses]:
    """What `begin` started, once, or a fresh one; ended on the way out."""
    trusted = _waiting.pop(0) if _waiting else TrustedProcesses()
    try:
        yield trusted
    finally:
        trusted.close()


@atexit.register
def end_waiting() -> None:
    """End what no run took: a name was misspelt, there is no GPU."""
    while _waiting:
        _waiting.pop().close()
