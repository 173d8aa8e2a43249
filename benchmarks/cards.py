"""How far the same source beside the same baseline differs from card to card, from the records alone.

    python benchmarks/cards.py

Behind `CARDS_LOG` of harness/measure/stats.py. Needs no GPU.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402
from harness.schema import Status  # noqa: E402


def pairs_pct(rows: Iterable[Any]) -> list[float]:
    """How far the geometric means over the same configs lie apart, two cards at a time, sorted."""
    logs: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(dict)
    for row in rows:
        told = row.speedup
        if row.status is Status.PASSED and row.machine.has_gpu and told:
            if row.entry == told.against or row.case.hidden:  # each run draws other shapes
                continue
            what = (row.gpu, row.suite_sha256, str(row.protocol))
            who = (*what, row.entry, row.source_sha256, told.against)
            logs[who].setdefault(row.machine.uuid, {})[row.config] = math.log(told.value)
    return sorted(
        100 * abs(sum(one.values()) - sum(other.values())) / len(one)
        for cards in logs.values()
        for one, other in itertools.combinations(cards.values(), 2)
        if one.keys() == other.keys()
    )


def main() -> None:
    """Print the spread of geometric means over the configs of a suite, two cards at a time."""
    apart = pairs_pct(record.load(ROOT / "results")[0])
    shares = {share: apart[round(share / 100 * (len(apart) - 1))] for share in (50, 90, 95, 100)}
    told_shares = ", ".join(f"{share} % of them {value:.2f} %" for share, value in shares.items())
    print(f"{len(apart)} pairs of geometric means on two cards differ by at most: {told_shares}")


if __name__ == "__main__":
    main()
