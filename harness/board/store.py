"""Where the lines of a run go: to disk one by one, then into the board."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harness.board import publish, record
from harness.board.rank import Leaderboard
from harness.errors import EXIT_OK, EXIT_STORAGE, EXIT_SUBMISSION_FAILED, EXIT_USAGE, HarnessError
from harness.schema import BLAMELESS, Kind, Result


class View(Protocol):
    """Who is shown what the board says after a run."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def board(self, leaderboard: Leaderboard, path: Path) -> None:
        """The boards that this run belongs to, and the file they stand in."""


class Store:
    """Passes results to the disk and remembers where they went; with `keep` also their lines.

    A line that the disk refuses is printed instead of lost.
    """

    def __init__(self, results_dir: Path, keep: bool = False) -> None:
        record.prepare(results_dir)
        self.results_dir = results_dir
        self._lines: list[str] | None = [] if keep else None
        self._boards: set[tuple[str, str]] = set()
        self._failed = False
        self._refused: record.LineNotWritten | None = None

    def save(self, result: Result) -> None:
        """Append one line; keep going if the disk says no."""
        self._boards.add((result.gpu, result.suite_sha256))
        self._failed |= result.kind is Kind.SUBMISSION and result.status not in BLAMELESS
        if self._lines is not None:
            self._lines.append(record.to_line(result))
        try:
            record.append(self.results_dir, result)
        except record.LineNotWritten as refused:
            print(refused.line, flush=True)
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

    @property
    def exit_code(self) -> int:
        """0 all asked for is done, 1 a submission failed, 5 a line could not be stored."""
        if self._refused:
            return EXIT_STORAGE
        return EXIT_SUBMISSION_FAILED if self._failed else EXIT_OK

    def exit_code_beside(self, refused: Sequence[HarnessError]) -> int:
        """The same, and 2 where somebody asked for could not be read; a lost line weighs more."""
        return EXIT_USAGE if refused and self.exit_code != EXIT_STORAGE else self.exit_code

    def tell(self, as_json: bool) -> None:
        """Print the one document that --json asks for; nothing else of a run is on stdout then."""
        if as_json:
            rows = [json.loads(line) for line in self._lines or ()]
            print(json.dumps({"results": rows}), flush=True)
