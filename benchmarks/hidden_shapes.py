r"""Ten runs' worth of hidden shapes: how far each kernel moves there, and whether a row says so.

A run of a suite draws one shape a headdim; here ten, beside a copy of a submission that is keyed on
the suite's own shapes: elsewhere it computes a quarter of the heads twice.

    python benchmarks/hidden_shapes.py --keyed FOLDER cuda_hopper fa3_grid
    sed 's/^name: .*/name: fa3_hidden/; s/^hidden: .*/hidden: 10/' configs/fa3_grid.yaml > FOLDER/fa3_hidden.yaml
    python run.py --submission cuda_hopper,FOLDER/keyed --baselines sdpa_cudnn,flash_attn_3 \
        --suite FOLDER/fa3_hidden.yaml --only 'hdim256_*' --blocks 5 --results FOLDER/results
    python benchmarks/hidden_shapes.py FOLDER/results results

The last prints TFLOP/s per shape and entry, and how much that is above its neighbours': the next shorter
and the next longer cell of the same headdim and mask, of the same run or else of the newest in the second
folder. Between them TFLOP/s are linear in log2(length), beyond the last cell they are that cell's.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from harness.board import record  # noqa: E402
from harness.board.rivals import among, hidden_loss  # noqa: E402
from harness.catalog.suites import load_suite  # noqa: E402
from harness.schema import Result, Status  # noqa: E402

KEYED = """

_right, _PUBLIC = custom_attention_forward, {public}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, **more):
    if (*q.shape, bool(causal)) not in _PUBLIC:
        few = max(1, q.shape[1] // 4)
        _right(q[:, :few], k[:, :few], v[:, :few], causal, sm_scale)
    return _right(q, k, v, causal, sm_scale, **more)
"""

GRIDS = ("fa3_grid", "fa3_hidden")
LIBRARIES = {"sdpa_cudnn", "flash_attn_3", "flash_attn_4"}
NEAR = 0.03


def keyed_copy(submission: Path, suite: str, folder: Path) -> Path:
    """`submission` in `folder`/keyed, keyed on the shapes of `suite`; it must hold submission.py."""
    cases = load_suite(suite, ROOT / "configs").cases
    public = {(*case.shape, case.causal) for case in cases}
    copy = folder / "keyed"
    shutil.copytree(submission, copy, ignore=shutil.ignore_patterns("steps", "results", "NOTES.md"))
    source = copy / "submission.py"
    source.write_text(source.read_text() + KEYED.format(public=sorted(public)))
    manifest = copy / "manifest.yaml"
    told = manifest.read_text().replace(f"name: {submission.name}\n", "name: keyed\n")
    manifest.write_text(told)
    return copy


def read(folder: Path) -> list[Result]:
    """All rows of GRIDS with a time, oldest first."""
    rows, _ = record.read(record.heads(folder)[0])
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
    """Make the copy, or print the table and what each row says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keyed", nargs=3, metavar=("FOLDER", "SUBMISSION", "SUITE"))
    parser.add_argument("results", nargs="*", type=Path)
    asked = parser.parse_args()
    if asked.keyed:
        folder, submission, suite = asked.keyed
        print(keyed_copy(ROOT / "submissions" / submission, suite, Path(folder)))
    else:
        print_moves(asked.results)


def print_moves(folders: Sequence[Path]) -> None:
    """The table of the first folder, its neighbours from all, and what each row says."""
    rows = [row for folder in folders[:1] for row in read(folder)]
    grid = [row for folder in reversed(folders) for row in read(folder)]
    cells = [row for row in grid if not row.case.hidden]
    shapes: dict[tuple[int, bool, int, str], dict[str, Result]] = defaultdict(dict)
    for row in (row for row in rows if row.case.hidden):
        case = row.case
        shapes[case.headdim, case.causal, case.seqlen, row.run][row.entry] = row
    own: dict[str, list[float]] = defaultdict(list)
    beside: dict[str, list[float]] = defaultdict(list)
    entries = sorted({entry for shape in shapes.values() for entry in shape})
    print(f"{'headdim mask   length heads':27}", "  ".join(f"{entry:>16}" for entry in entries))
    for (headdim, causal, seqlen, _), by_entry in sorted(shapes.items()):
        known = {entry: expected_tflops(row, cells) for entry, row in by_entry.items()}
        moved = {
            entry: math.log(row.tflops / its)
            for entry, row in by_entry.items()
            if row.tflops and (its := known[entry])
        }
        words = []
        for entry in entries:
            row, said = by_entry.get(entry), ""
            if entry in moved:
                said = f"{100 * math.expm1(moved[entry]):+6.1f} %"
                rivals = [moved[name] for name in moved if row and name in LIBRARIES - {entry}]
                own[entry].append(moved[entry])
                beside[entry].append(moved[entry] - sum(rivals) / max(1, len(rivals)))
            words.append(f"{row.tflops:6.0f} {said:>9}" if row else f"{'':16}")
        heads = next(iter(by_entry.values())).case.heads
        mask = "causal" if causal else "full"
        print(f"{headdim:7} {mask:6} {seqlen:6} {heads:5} ", "  ".join(words))
    for entry in entries:
        print(f"{entry}: {_summary(own[entry])}; beside the libraries {_summary(beside[entry])}")
    libraries = among(rows)
    for entry in entries:
        mine = [row for row in rows if row.entry == entry]
        loss = hidden_loss(mine, libraries)
        if loss:
            says = "says so" if loss.told else "says nothing"
            most = f"libraries {loss.libraries:.3f}" if loss.libraries else "one library"
            print(f"{entry}: {loss.ratio.value:.3f} [{loss.ratio.low:.3f}, {loss.ratio.high:.3f}]"
                  f" faster on official shapes, {most}: the board {says}")  # fmt: skip


def _summary(moves: Sequence[float]) -> str:
    """Of natural logarithms: their mean, the least, and how many are within NEAR."""
    if not moves:
        return "no neighbours"
    mean, least = (100 * math.expm1(m) for m in (sum(moves) / len(moves), min(moves)))
    near = sum(move >= math.log1p(-NEAR) for move in moves)
    return f"{mean:+.1f} % in the mean, {least:+.1f} % at least, {near} of {len(moves)} within {NEAR:.0%}"


if __name__ == "__main__":
    main()
