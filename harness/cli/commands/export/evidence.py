"""What the board says of one entrant's very bytes: its rows, and the records behind them."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from harness.board import record
from harness.board.export import of_board
from harness.board.rank import WRONG, Board, Leaderboard, Row
from harness.board.render.heat_map import loss_words
from harness.board.rivals import place
from harness.problems import get_problem
from harness.schema import Case, Claims, Entrant, Result, Status

Judged = tuple[Board, Row]
NO_GPU = "0.0"  # the capability of a CPU
OUTCOME = attrgetter("status", "source_sha256", "problem")
OF_A_MANIFEST = {"author", "description", "language", "license", "problem"}
OF_A_RESULT = {
    *("config", "case", "latency_ms", "tflops", "peak_pct", "speedup", "numerics_class"),
    *("max_diff", "integrity", "date", "run", "harness_commit"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """An entrant and the rows of its bytes: what becomes forward/ or backward/."""

    entrant: Entrant
    rows: tuple[Judged, ...]
    lines: tuple[bytes, ...]  # of the records: its own, and of whom it was held against there
    strided: bool = False  # said by who exports it: the judge hands over contiguous tensors

    @property
    def returns_lse(self) -> bool:
        """Whether the function takes `return_lse`, as who judged it looked it up."""
        return self.entrant.manifest.claims.lse

    @property
    def lse_judged(self) -> bool:
        """Whether lse was right on a case of every kind that was judged at all."""
        return bool(self.rows) and _kinds(r for r in self._results if r.lse) == self.together

    @property
    def _results(self) -> list[Result]:
        """Of its rows; of those on a GPU alone, if there are some: a CPU tells nothing of that."""
        results = [result for _, row in self.rows for result in row.results]
        return [result for result in results if result.machine.has_gpu] or results

    @property
    def together(self) -> list[tuple[int, str, bool, int, str]]:
        """Which headdims, types, grouped heads and unequal lengths one case had together, where."""
        return _kinds(self._results)

    @property
    def claims(self) -> Claims:
        """Its manifest's, as far as a case of its rows counts for them; of who has no row, all."""
        said = self.entrant.manifest.claims
        cases = [result.case for result in self._results]
        if not cases:
            return said
        headdims, dtypes = (set(map(_headdim, cases)), {case.dtype for case in cases})
        judged = {
            "headdims": tuple(each for each in said.headdims if each in headdims),
            "dtypes": tuple(each for each in said.dtypes if each in dtypes),
            "gqa": any(case.kv_heads for case in cases),
            "seqlens": "any" if any(case.seqlen_k for case in cases) else "equal",
            "packed": any(case.seqlens for case in cases),
        }
        return said.model_copy(update=judged)

    @property
    def capabilities(self) -> list[str]:
        """Of the GPUs that it was judged on, 0.0 of a CPU."""
        return sorted({on for *_, on in self.together})

    def as_json(self, records: str) -> dict[str, Any]:
        """As it stands in evidence.json; `records` is the file that holds its lines."""
        manifest = self.entrant.manifest
        return {
            **manifest.model_dump(include=OF_A_MANIFEST),
            "entry": self.entrant.name,
            "entry_file": manifest.entry,
            "function": get_problem(manifest.problem).function,
            "returns_lse": self.returns_lse,
            "lse_judged": self.lse_judged,
            "strided": self.strided,
            "source_sha256": self.entrant.source_sha256,
            "files": [name for name, _ in self.entrant.files],
            "claims": self.claims.model_dump(mode="json"),
            "together": self.together,
            "needs": manifest.needs.model_dump(mode="json"),
            "capabilities": self.capabilities,
            "boards": [_board(board, row) for board, row in self.rows],
            "records": records,
        }


def _kinds(results: Iterable[Result]) -> list[tuple[int, str, bool, int, str]]:
    judged = ((r.case, r.machine.capability if r.machine.has_gpu else NO_GPU) for r in results)
    return sorted({(*_kind(case), on) for case, on in judged})


def _kind(case: Case) -> tuple[int, str, bool, int]:
    """Headdim, dtype, whether heads are grouped, 1 for more keys than queries, -1 for fewer."""
    keys = case.seqlen_k or case.seqlen
    more = (keys > case.seqlen) - (keys < case.seqlen)
    return _headdim(case), case.dtype.value, bool(case.kv_heads), more


def _headdim(case: Case) -> int:
    """Of a packed case none: no call of a package is one."""
    return 0 if case.seqlens else case.headdim


def rows_of(entrant: Entrant, found: Leaderboard) -> list[Judged]:
    """Rows that passed with the bytes of `entrant`, GPUs and the official suite first, or none."""
    official, _ = get_problem(entrant.manifest.problem).suites
    mine = [
        (board, row)
        for board in found.boards
        for row in board.rows
        if row.entry == entrant.name and row.pick.source_sha256 == entrant.source_sha256
    ]
    each = (result for _, row in mine for result in (*row.results, *row.hidden))
    if any(result.status in WRONG for result in each):  # a model asks for any shape
        return []
    passed = (Status.PASSED, entrant.source_sha256, entrant.manifest.problem)
    rows = [pair for pair in mine if set(map(OUTCOME, pair[1].results)) == {passed}]
    return sorted(rows, key=lambda r: (not r[1].pick.machine.has_gpu, r[0].suite != official))


def lines_of(rows: Iterable[Judged], heads: Iterable[record.Head]) -> list[bytes]:
    """The lines of the records behind `rows`, byte for byte: own, baseline's, pace's."""
    at: dict[object, list[record.Head]] = {}
    for head in heads:
        at.setdefault((place(head), head.entry), []).append(head)
    lines: dict[bytes, None] = {}
    for _, row in rows:
        for r in row.results:
            against = r.speedup.against if r.speedup else r.entry
            for entry in (r.entry, against, r.slack.pace if r.slack else against):
                for head in record.whole(at.get((place(r), entry), ()))[-1:]:
                    lines[head.line()] = None
    return list(lines)


def _board(board: Board, row: Row) -> dict[str, Any]:
    return {
        **of_board(board),
        "rank": row.rank,
        "notes": [said for said in (row.why, loss_words(row)) if said],
        "speedup": [row.speedup.value, row.speedup.low, row.speedup.high] if row.speedup else None,
        "results": [
            result.model_dump(mode="json", include=OF_A_RESULT)
            | result.machine.model_dump(include={"driver", "torch", "triton"})
            for result in row.results
        ],
    }
