"""Hidden shapes beside their neighbours on the grid: how far each kernel moves, and whether a row says so.

    python benchmarks/hidden_shapes.py RESULTS [GRID]

RESULTS: a folder of records with hidden shapes; GRID: one with their neighbours, if those records lack
them. A neighbour is the next shorter and the next longer cell of the same headdim and mask, the newest
of the entry; between them TFLOP/s are linear in log2(length), beyond the last cell they are the cell's.
Printed per shape and entry: TFLOP/s, and how much that is above the neighbours' in percent.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from harness.board import record  # noqa: E402
from harness.board.rivals import among, hidden_loss  # noqa: E402
from harness.schema import Result, Status  # noqa: E402

GRIDS = ("fa3_grid", "fa3_hidden")


def read(folder: Path) -> list[Result]:
    """All rows of GRIDS with a time, oldest first."""
    rows, _ = record.load(folder)
    timed = [r for r in rows if r.suite in GRIDS and r.status is Status.PASSED]
    return sorted(timed, key=lambda r: r.date)


def expected_tflops(hidden: Result, cells: Sequence[Result]) -> float | None:
    """Between the neighbours of a hidden shape among `cells` of its entry; None without one."""
    case = hidden.case
    near = {
        r.case.seqlen: r.tflops
        for r in cells
        if (r.entry, r.case.headdim, r.case.causal) == (hidden.entry, case.headdim, case.causal)
        and r.tflops
    }
    below = max((n for n in near if n <= case.seqlen), default=None)
    above = min((n for n in near if n > case.seqlen), default=None)
    if below is None or above is None:
        one = above if below is None else below
        return None if one is None else near[one]
    share = math.log2(case.seqlen / below) / math.log2(above / below)
    return near[below] * (1 - share) + near[above] * share


def main() -> None:
    """Print the table and what each row says."""
    rows = [row for folder in sys.argv[1:2] for row in read(Path(folder))]
    grid = [row for folder in sys.argv[1:] for row in read(Path(folder))]
    cells = [row for row in grid if not row.case.hidden]
    shapes: dict[tuple[int, bool, int, str], dict[str, Result]] = defaultdict(dict)
    for row in (row for row in rows if row.case.hidden):
        case = row.case
        shapes[case.headdim, case.causal, case.seqlen, row.run][row.entry] = row
    entries = sorted({entry for shape in shapes.values() for entry in shape})
    print(f"{'headdim mask   length heads':27}", "  ".join(f"{entry:>16}" for entry in entries))
    for (headdim, causal, seqlen, _), by_entry in sorted(shapes.items()):
        words = []
        for entry in entries:
            row = by_entry.get(entry)
            known = expected_tflops(row, cells) if row else None
            moved = f"{100 * (row.tflops / known - 1):+6.1f} %" if row and known else ""
            words.append(f"{row.tflops:6.0f} {moved:>9}" if row else f"{'':16}")
        heads = next(iter(by_entry.values())).case.heads
        mask = "causal" if causal else "full"
        print(f"{headdim:7} {mask:6} {seqlen:6} {heads:5} ", "  ".join(words))
    libraries = among(rows)
    for entry in entries:
        mine = [row for row in rows if row.entry == entry]
        hidden = [row for row in mine if row.case.hidden]
        loss = hidden_loss([row for row in mine if not row.case.hidden], hidden, libraries)
        if loss:
            says = "says so" if loss.told else "says nothing"
            most = f"libraries {loss.libraries:.3f}" if loss.libraries else "one library"
            print(f"{entry}: {loss.ratio.value:.3f} [{loss.ratio.low:.3f}, {loss.ratio.high:.3f}]"
                  f" faster on official shapes, {most}: the board {says}")  # fmt: skip


if __name__ == "__main__":
    main()
