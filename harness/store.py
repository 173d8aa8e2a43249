"""Where the lines of a run go: to disk one by one, then into the board."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import record
from harness.commands import rank as rank_command
from harness.errors import (
    EXIT_OK,
    EXIT_STORAGE,
    EXIT_SUBMISSION_FAILED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    HarnessError,
)
from harness.report.terminal import Terminal
from harness.schema import BLAMELESS, Kind, Result, Status


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
            print(refused.line, flush=True)
            self._refused = refused

    def rank_into(self, leaderboard: Path | None, observer: Terminal) -> None:
        """Rebuild the boards that this run belongs to, from everything under results/."""
        if not self._boards:
            return
        if self._refused:
            observer.note(str(self._refused))
            return
        gpus = {gpu for gpu, _ in self._boards}
        for path, board, bad in rank_command.rebuild(self.results_dir, leaderboard, gpus):
            for line in bad:
                observer.note(str(line))
            shown = tuple(b for b in board.boards if (b.gpu, b.suite_sha256) in self._boards)
            observer.board(replace(board, boards=shown), path)

    @property
    def exit_code(self) -> int:
        """5 a line could not be stored, 1 a submission failed, 2 the harness did, 3 none of them could run.

        0 where at least one shape passed and nothing else went wrong, or nothing was left to do.
        """
        if self._refused:
            return EXIT_STORAGE
        if self._statuses - BLAMELESS:
            return EXIT_SUBMISSION_FAILED
        if Status.HARNESS_ERROR in self._statuses:
            return EXIT_USAGE
        idle = self._statuses and Status.PASSED not in self._statuses
        return EXIT_UNAVAILABLE if idle else EXIT_OK

    def exit_code_beside(self, refused: Sequence[HarnessError]) -> int:
        """The same, and 2 where somebody asked for could not be read; a lost line weighs more."""
        return EXIT_USAGE if refused and self.exit_code != EXIT_STORAGE else self.exit_code

    def tell(self, as_json: bool) -> None:
        """Print the one document that --json asks for; nothing else of a run is on stdout then."""
        if as_json:
            rows = [json.loads(line) for line in self._lines or ()]
            print(json.dumps({"results": rows}), flush=True)
