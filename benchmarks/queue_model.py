"""How evenly cuda_hopper's work items fall on the SMs: a model of its queue, without a GPU.

    python benchmarks/queue_model.py [--sms 132] [--overhead 1.5]

An item is 64 times WARPGROUPS query rows of one head and costs its kv tiles plus `overhead` tiles for what
begins and ends it. Items are taken longest first within a section of heads; a section that is not full comes
first. An early request (rung 6)
takes the next item when the present one begins, a late one (rung 7, cuda_hopper) when it ends. Nothing here knows of
clocks, caches or power: it says what the order of the items alone costs.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """One official shape, and the tile shape of its kernel."""

    heads: int  # batch * heads
    seqlen: int
    headdim: int
    rows: int  # query rows of an item
    keys: int  # kv rows of a tile
    short_last: bool = False  # rung 10: the shortest items of all heads after the last section

    def section(self, limit_mib: int) -> int:
        """Heads that are walked together: a power of two whose K and V fit `limit_mib`."""
        fit = max(1, min(self.heads, (limit_mib << 20) // (4 * self.seqlen * self.headdim)))
        return 1 << (fit.bit_length() - 1)

    def items(self, limit_mib: int) -> list[int]:
        """The kv tiles of every item in the order of its number; 0 where it only fills up a section."""
        section, blocks = self.section(limit_mib), -(-self.seqlen // self.rows)
        padded = -(-self.heads // section) * section
        late = blocks * section // padded if self.short_last else 0
        tiles = []
        for number in range(padded * blocks):
            if number < padded * (blocks - late):
                group, within = divmod(number, section)
                part, block = divmod(group, blocks - late)
                head = part * section + within
            else:
                block, head = divmod(number - padded * (blocks - late), padded)
                block += blocks - late
            last = self.seqlen - block * self.rows  # it is the first rows that do not fill a block
            tiles.append(-(-last // self.keys) if head >= padded - self.heads else 0)
        return tiles


CONFIGS = {
    "hdim64_seq4k": Config(128, 4096, 64, 256, 64),
    "hdim128_seq8k": Config(32, 8192, 128, 128, 128),
    "hdim256_seq16k": Config(8, 16384, 256, 128, 80),
    "2,655 rows, 168 heads": Config(168, 2655, 64, 256, 64),
    "hdim128, 192 rows": Config(32, 8192, 128, 192, 64),
    "... short items last (rung 10)": Config(32, 8192, 128, 192, 64, short_last=True),
}


def finish(tiles: list[int], sms: int, overhead: float, late: bool) -> list[float]:
    """When each SM is done, in tiles."""
    costs = [count + overhead if count else 0.0 for count in tiles]
    ends = [0.0] * sms
    reserve = [sm for sm in range(sms) if sm < len(costs)]  # the item that each SM begins next
    free = [(0.0, sm) for sm in reserve]
    taken = len(reserve)
    while free:  # the SM that is free first begins an item
        now, sm = heapq.heappop(free)
        item, reserve[sm] = reserve[sm], -1
        if item < 0:  # a late request
            item, taken = taken, taken + 1
        elif not late:
            reserve[sm], taken = taken, taken + 1
        if item < len(costs):
            ends[sm] = now + costs[item]
            heapq.heappush(free, (ends[sm], sm))
    return ends


def imbalance(ends: list[float]) -> float:
    """Time of the slowest SM over the mean."""
    return max(ends) * len(ends) / sum(ends)


def main() -> int:
    """Print slowest over mean for both ways to ask and two sizes of a section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sms", type=int, default=132)
    parser.add_argument("--overhead", type=float, default=1.5, help="tiles, for each item")
    args = parser.parse_args()
    print(f"slowest SM over the mean, {args.sms} SMs   early request      late request")
    print(f"{'sections of':32s} 32 MB   128 MB     32 MB   128 MB")
    for name, config in CONFIGS.items():
        cells = [
            imbalance(finish(config.items(mib), args.sms, args.overhead, late))
            for late in (False, True)
            for mib in (32, 128)
        ]
        print("{:31s} {:6.3f}   {:6.3f}    {:6.3f}   {:6.3f}".format(name, *cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
