"""Where the lines of a run go: to disk one by one, then into the board."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from harness import record
from harness.commands import rank as rank_command
from harness.errors import EXIT_OK, EXIT_STORAGE, EXIT_SUBMISSION_FAILED
from harness.report.terminal import Terminal
from harness.schema import BLAMELESS, Kind, Result


class Store:
    """Collects the results of one run; a line that the disk refuses is printed instead of lost."""

    def __init__(self, results_dir: Path) -> None:
        self.results_dir = results_dir
        self.results: list[Result] = []
        self._refused: record.LineNotWritten | None = None

    def save(self, result: Result) -> None:
        """Append one line; keep going if the disk says no."""
        self.results.append(result)
        try:
            record.append(self.results_dir, result)
        except record.LineNotWritten as refused:
            print(refused.line, flush=True)
            self._refused = refused

    def rank_into(self, leaderboard: Path, observer: Terminal) -> None:
        """Rebuild the board from everything under results/."""
        if not self.results:
            return
        if self._refused:
            observer.note(str(self._refused))
            return
        board, bad, files = rank_command.publish(self.results_dir, leaderboard)
        for path, text in files.items():
            rank_command.write(path, text)
        for line in bad:
            observer.note(str(line))
        mine = {(result.gpu, result.suite_sha256) for result in self.results}
        shown = tuple(b for b in board.boards if (b.gpu, b.suite_sha256) in mine)
        observer.board(replace(board, boards=shown), leaderboard)

    @property
    def exit_code(self) -> int:
        """0 all asked for is done, 1 a submission failed, 5 a line could not be stored."""
        if self._refused:
            return EXIT_STORAGE
        failed = [
            r for r in self.results if r.kind is Kind.SUBMISSION and r.status not in BLAMELESS
        ]
        return EXIT_SUBMISSION_FAILED if failed else EXIT_OK

    def tell(self, as_json: bool) -> None:
        """Print the one document that --json asks for; nothing else of a run is on stdout then."""
        if as_json:
            print(
                json.dumps({"results": [json.loads(record.to_line(r)) for r in self.results]}),
                flush=True,
            )
