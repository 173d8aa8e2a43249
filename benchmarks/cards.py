"""How far the same source beside the same baseline differs from card to card, from the records alone.

    python benchmarks/cards.py

Behind `CARDS_LOG` of harness/measure/stats.py. Needs no GPU.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402
from harness.schema import Status  # noqa: E402


def main() -> None:
    """Print the spread of geometric means over the configs of a suite, two cards at a time."""
    logs: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(dict)
    for row in record.load(ROOT / "results")[0]:
        told = row.speedup
        if row.status is Status.PASSED and row.machine.has_gpu and told:
            if row.entry == told.against:
                continue
            who = (row.gpu, row.suite_sha256, row.entry, row.source_sha256, told.against)
            card = logs[who].setdefault(row.machine.uuid, {})
            card[row.config] = math.log(told.value)
    apart = []
    for cards in logs.values():
        whole = max(map(len, cards.values()))
        means = [sum(c.values()) / whole for c in cards.values() if len(c) == whole]
        apart += [100 * abs(a - b) for a, b in itertools.combinations(means, 2)]
    apart.sort()
    shares = {share: apart[round(share / 100 * (len(apart) - 1))] for share in (50, 90, 95, 100)}
    told_shares = ", ".join(f"{share} % of them {value:.2f} %" for share, value in shares.items())
    print(f"{len(apart)} pairs of geometric means on two cards differ by at most: {told_shares}")


if __name__ == "__main__":
    main()
