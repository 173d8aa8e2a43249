"""Where the lines of a run go: to disk one by one, then into the board."""

import contextlib
import json
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harness.board import publish, record
from harness.board.rank import Leaderboard
from harness.catalog.request import Request
from harness.errors import Exit
from harness.process.text import run_document
from harness.schema import BLAMELESS, Kind, Result, Status

KEPT = 20  # runs of --check whose wrong outputs can be asked for again


class View(Protocol):
    """Who is shown what the board says after a run."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def board(self, leaderboard: Leaderboard, path: Path) -> None:
        """The boards that this run belongs to, and the file they stand in."""


class Checked:
    """What --check finds, in the place of a Store: no record, no board, the same exit codes.

    Rows that `replay` asks again lie in the cache, those of the last KEPT runs.
    """

    def __init__(self, request: Request) -> None:
        names = [e.name for e in request.entrants if e.kind is Kind.SUBMISSION]
        self._open = [(name, case.name) for name in names for case in request.asked.cases]
        self._failed: dict[tuple[str, str], Result] = {}
        self._others = (Status.PASSED, "")  # what became of who has not failed
        self.results_dir = request.cache / "checks"

    def save(self, result: Result) -> None:
        """A row that did not pass; who passes has none."""
        if result.kind is Kind.SUBMISSION:
            self._failed[result.entry, result.config] = result
        if result.mismatch:
            with contextlib.suppress(record.LineNotWritten, OSError):  # the verdict stands without
                record.append(self.results_dir, result)
                by_run = {p.stem.split("_")[-1]: p for p in self.results_dir.rglob("*.jsonl")}
                for run in sorted(by_run)[:-KEPT]:
                    by_run[run].unlink(missing_ok=True)

    def rank_into(self, leaderboard: Path | None, view: View) -> None:
        """Say how many passed, where a Store writes the board; none where an error ended it."""
        passed = len(self._open) - len(self._failed)
        if sys.exc_info()[0]:  # which goes on when this is told
            self._others, passed = (Status.INTERRUPTED, "the run ended before it was known"), 0
        view.note(f"checked: {passed} of {len(self._open)} passed; nobody was timed or recorded")

    def exit_code(self, refused: Sequence[str] = ()) -> int:
        """As of a run."""
        found = [self._failed.get(key) for key in self._open]
        return code_of({row.status if row else self._others[0] for row in found}, refused)

    def print_json(self, refused: Sequence[str] = ()) -> None:
        """Print the one document that --json asks for."""
        rows = []
        for entry, config in self._open:
            told = self._failed.get((entry, config))
            status, reason = (told.status, told.reason) if told else self._others
            rows += [{"entry": entry, "config": config, "status": status.value, "reason": reason}]
        print(run_document("checks", rows, refused), flush=True)


def code_of(statuses: AbstractSet[Status], refused: Sequence[str] = ()) -> int:
    """Exit code of what became of the submissions: 1 one failed, 2 the harness did, 3 none ran.

    Who was `refused` failed, too. 0 where at least one shape passed and nothing else went wrong, or
    nothing was left to do.
    """
    if statuses - BLAMELESS or (refused and Status.HARNESS_ERROR not in statuses):
        return Exit.SUBMISSION_FAILED
    if Status.HARNESS_ERROR in statuses:
        return Exit.USAGE
    return Exit.UNAVAILABLE if statuses and Status.PASSED not in statuses else Exit.OK


class Store:
    """Passes results to the disk and remembers where they went; with `keep` also their lines.

    A line that the disk refuses is printed instead of lost.
    """

    def __init__(self, results_dir: Path, keep: bool = False) -> None:
        record.prepare(results_dir)
        self.results_dir = results_dir
        self._lines: list[str] | None = [] if keep else None
        self._boards: set[tuple[str, str]] = set()
        self._statuses: set[Status] = set()  # of submissions
        self._refused: record.LineNotWritten | None = None

    def save(self, result: Result) -> None:
        """Append one line; keep going if the disk says no."""
        self._boards.add((result.gpu, result.suite_sha256))
        if result.kind is Kind.SUBMISSION:
            self._statuses.add(result.status)
        if self._lines is not None:
            self._lines.append(record.to_line(result))
        try:
            record.append(self.results_dir, result)
        except record.LineNotWritten as refused:
            apart = None if self._lines is None else sys.stderr  # from the document of --json
            print(refused.line, file=apart, flush=True)
            self._refused = refused

    def rank_into(self, leaderboard: Path | None, view: View) -> None:
        """Rebuild the boards that this run belongs to, from everything under results/."""
        if not self._boards:
            return
        if self._refused:
            view.note(str(self._refused))
            return
        gpus = {gpu for gpu, _ in self._boards}
        for path, board, bad in publish.rebuild(self.results_dir, leaderboard, gpus):
            for line in bad:
                view.note(str(line))
            shown = tuple(b for b in board.boards if (b.gpu, b.suite_sha256) in self._boards)
            view.board(replace(board, boards=shown), path)

    def exit_code(self, refused: Sequence[str] = ()) -> int:
        """5 where a line could not be stored; else what became of the submissions says it."""
        return Exit.STORAGE if self._refused else code_of(self._statuses, refused)

    def print_json(self, refused: Sequence[str] = ()) -> None:
        """Print the one document that --json asks for; nothing else of a run is on stdout then."""
        rows = [json.loads(line) for line in self._lines or ()]
        print(run_document("results", rows, refused), flush=True)
