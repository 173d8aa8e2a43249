"""`--watch`: the run again after every edit of its submissions, in the same process.

Between two runs the judge and the fork server of the next one import torch
(harness/process/prestart.py), so a verdict waits for the compiler and the GPU alone. Every run
reads its suite, manifests and sources anew.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from harness.board.render.text import sanitize
from harness.catalog import steps
from harness.catalog.entrants import places
from harness.catalog.source_files import MAX_DEPTH, SKIPPED_DIRS, SKIPPED_FILES
from harness.cli.main import MANY, exit_code_of
from harness.errors import Exit, HarnessError, UsageError
from harness.process import prestart
from harness.process.project import base

PERIOD_S = 0.05
MENDABLE = {Exit.OK, Exit.SUBMISSION_FAILED, Exit.USAGE}  # what an edit can change
UNFINISHED = ("~", "#", ".swp", ".swo", ".swx", ".tmp", ".bak", ".orig", ".pyc", "___")
VIM_PROBE = "4913"  # Vim writes it to learn whether it may write there
NAMES_TOLD = 3

State = dict[Path, tuple[int, int]]  # mtime in ns, size in bytes


class Watch:
    """The sources of the submissions that `args` names; `seen`: as they were last time."""

    def __init__(
        self,
        args: argparse.Namespace,
        root: Path | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        for flag in ("json", *MANY):
            if getattr(args, flag):
                said = f"--watch repeats one run in this terminal; --{flag.replace('_', '-')}"
                hint = f"python run.py --submission {','.join(args.submission)} --watch"
                raise UsageError(f"{said} is for other runs", hint)
        self.args, self.sleep = args, sleep
        self.root = root or base() / "submissions"
        self.seen: State = {}
        self._rungs: dict[Path, list[Path]] = {}

    def repeat(self, run: Callable[[argparse.Namespace], int]) -> int:
        """`run` now and after every edit until Ctrl-C; the exit code of the last one."""
        once = argparse.Namespace(**{**vars(self.args), "watch": False})
        code: int = Exit.INTERRUPTED
        try:
            while True:
                self.take()
                code = exit_code_of(partial(run, once))
                if code not in MENDABLE or not self.seen:
                    return code
                prestart.start_next()
                print(f"watching {_names(self.seen)}; Ctrl-C ends", flush=True)
                print(f"changed: {_names(self.wait())}", flush=True)
        except KeyboardInterrupt:
            said = "stopped watching: what was measured is recorded"
            print(f"{said}\n  next: the same command again", file=sys.stderr)
            return code

    def take(self) -> None:
        """Remember the sources as they are; what changes from now on asks for another run."""
        self._rungs.clear()
        self.seen = self.look()

    def wait(self) -> list[Path]:
        """Block until the sources differ from `seen` and rest for one more look; which differ."""
        last = self.seen
        while True:
            now = self.look()
            if now and now == last != self.seen:
                return sorted(p for p in now | self.seen if now.get(p) != self.seen.get(p))
            last = now
            self.sleep(PERIOD_S)

    def look(self) -> State:
        """Time and size of every source; a file that goes away meanwhile is left out."""
        found: State = {}
        for place in places(self.args.submission, self.root):
            with contextlib.suppress(OSError, HarnessError):
                for path in self._sources(place):
                    with contextlib.suppress(OSError):
                        stat = path.stat()
                        found[path] = (stat.st_mtime_ns, stat.st_size)
        return found

    def _sources(self, place: Path) -> Iterable[Path]:
        """What the source hash of `place` covers, and the descriptions that it is read with."""
        folder = place if place.is_dir() else place.parent
        above = [folder.parent / "manifest.yaml"] if folder.name == "steps" else []
        if place.is_dir() or os.path.exists(folder / "manifest.yaml"):
            return [*_below(folder), *above]
        if place.suffix != ".cu":
            return [place]
        # Read once a run: a new neighbour counts when one of these files names it, and has changed
        # for it.
        if place not in self._rungs:
            self._rungs[place] = [folder / name for name in steps.names_of(place)]
        return [*self._rungs[place], folder / steps.LAUNCH_FILE, *above]


def _below(folder: Path) -> Iterator[Path]:
    """The files of a submission, or of a folder of them."""
    for here, folders, files in os.walk(folder):
        deepest = len(Path(here).relative_to(folder).parts) >= MAX_DEPTH  # a run reads no deeper
        kept = [] if deepest else folders
        folders[:] = [f for f in kept if f not in SKIPPED_DIRS and not f.startswith(".")]
        skipped = SKIPPED_FILES | {VIM_PROBE}
        for name in files:
            if name not in skipped and not name.startswith(".") and not name.endswith(UNFINISHED):
                yield Path(here, name)


def _names(paths: Iterable[Path]) -> str:
    """The first few names, then how many more."""
    names = [sanitize(path.name, 80) for path in sorted(paths)]
    more = len(names) - NAMES_TOLD
    return ", ".join(names[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
