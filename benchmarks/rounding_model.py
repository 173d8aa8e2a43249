"""What each way to round P costs an attention in half precision: a model on the CPU, one head, row by row.

    python benchmarks/rounding_model.py            # three tile shapes, two draws: a minute, 4 GB

P is rounded to half before it multiplies V, everything else is float64, so that the error is of the rounding (and of the
half that O is stored in) alone. `lazy` refers P to the maximum of the row's first tile and counts P in full in tile 0 of the
first item, as rung 8 of cuda_hopper does; its way out for rows that outgrow the reference is left out (no such row is drawn).
`few keys in full` counts P in full in all tiles of that item, as rung 11 does; `rises past 2` takes a new reference whenever
a P passes 2, for all 16 rows of a warp, and says for how many tiles of a warpgroup (four warps) that happens.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch

SHAPES = ((64, 64, 256, 4096), (128, 128, 128, 8192), (128, 64, 192, 8192))
KEYS_OF_A_RUNNING_TILE = 128
ROWS_OF_A_WARP, WARPS = 16, 4


def errors(
    headdim: int, keys: int, rows: int, seqlen: int, seed: int
) -> tuple[dict[str, torch.Tensor], float]:
    """Way → relative L2 [whole, worst row] of causal attention on normal inputs; the trips that `rises past 2` rises in."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(seqlen, headdim, generator=generator).half() for _ in range(3))
    scores = (q.float() @ k.float().T) * (headdim**-0.5 * math.log2(math.e))
    scores.masked_fill_(torch.ones(seqlen, seqlen, dtype=torch.bool).triu(1), -math.inf)
    highest = scores.amax(1, keepdim=True)
    exact = weighted(torch.exp2(scores.double() - highest.double()), None, v)
    full = torch.exp2(scores - scores[:, :keys].amax(1, keepdim=True))
    truncated = (full.view(torch.int32) & -8192).view(torch.float32)  # ten bits of mantissa
    everywhere = full.half().float()
    rounded = everywhere.clone()
    for given in (rounded, truncated):
        given[:rows, :keys] = full[:rows, :keys]
    few = everywhere.clone()
    few[:rows] = full[:rows]
    rises, share = rising(scores, keys, 2.0)
    running, _ = rising(scores, KEYS_OF_A_RUNNING_TILE, 0.0)  # at every key
    rises[:rows] = torch.exp2(scores[:rows] - highest[:rows])
    sums = torch.exp2(scores - highest)
    ways = {
        "lazy, rounded in tile 0 too": (everywhere, full),
        "lazy, sum of all of P": (rounded, full),
        "lazy, sum of the rounded P": (rounded, None),
        "lazy, truncated, sum of that": (truncated, None),
        "lazy, few keys in full": (few, full),
        "rises past 2": (rises, sums),
        "running maximum": (running, sums),
    }
    found = {}
    for name, (p, summed) in ways.items():
        off = weighted(p, summed, v).half().double() - exact
        by_row = off.norm(dim=1) / exact.norm(dim=1)
        found[name] = torch.stack([off.norm() / exact.norm(), by_row.max()])
    return found, share


def weighted(p: torch.Tensor, summed: torch.Tensor | None, v: torch.Tensor) -> torch.Tensor:
    """O [S, D]: P [S, S] times V over the row sums of `summed`, or of P itself."""
    return (p.double() @ v.double()) / (p if summed is None else summed).double().sum(1)[:, None]


def rising(scores: torch.Tensor, keys: int, past: float) -> tuple[torch.Tensor, float]:
    """P rounded against a reference that rises past a limit, told against the row's maximum; how often it does."""
    seqlen = scores.shape[0]
    p, reference = torch.empty_like(scores), scores[:, :keys].amax(1)
    highest, risen, trips = scores.amax(1), 0, 0
    for start in range(0, seqlen, keys):
        tile = scores[:, start : start + keys]
        top = tile.amax(1)
        warps = (torch.exp2(top - reference) > past).view(-1, ROWS_OF_A_WARP).any(1)
        first = start // (ROWS_OF_A_WARP * WARPS)  # warpgroups above see none of these keys
        risen += int(warps.view(-1, WARPS).any(1)[first:].sum())
        trips += len(warps) // WARPS - first
        rise = warps.repeat_interleave(ROWS_OF_A_WARP)
        reference = torch.where(rise, torch.maximum(reference, top), reference)
        rounded = torch.exp2(tile - reference[:, None]).half().float()
        p[:, start : start + keys] = rounded * torch.exp2(reference - highest)[:, None]
    return p, risen / trips


def main() -> int:
    """One line a shape and way: the mean whole error, the worst row of all draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=2)
    args = parser.parse_args()
    for headdim, keys, rows, seqlen in SHAPES:
        print(f"headdim {headdim}, tiles of {keys} keys, items of {rows} rows, {seqlen} tokens")
        draws, shares = zip(
            *(errors(headdim, keys, rows, seqlen, seed) for seed in range(args.draws)), strict=True
        )
        for name in draws[0]:
            whole, worst = torch.stack([draw[name] for draw in draws]).unbind(1)
            print(f"  {name:30} whole {whole.mean():.2e}   worst row {worst.max():.2e}")
        print(f"  rises past 2 in {sum(shares) / len(shares):.0%} of the trips")
    return 0


if __name__ == "__main__":
    sys.exit(main())
