"""What each way to round P costs an attention in half precision: a model on the CPU, one head, row by row.

    python benchmarks/rounding_model.py            # three tile shapes, two draws: a minute, 4 GB

P is rounded to half before it multiplies V, everything else is float64, so that the error is of the rounding (and of the
half that O is stored in) alone. `lazy` refers P to the maximum of the row's first tile and counts P in full in tile 0 of the
first item, as cuda_hopper does; its way out for rows that outgrow the reference is left out (no such row is drawn).
"""

from __future__ import annotations

import argparse
import math
import sys

import torch

SHAPES = ((64, 64, 256, 4096), (128, 128, 128, 8192), (128, 64, 192, 8192))
KEYS_OF_A_RUNNING_TILE = 128


def errors(headdim: int, keys: int, rows: int, seqlen: int, seed: int) -> dict[str, torch.Tensor]:
    """Way → relative L2 [whole, worst row] of causal attention on normal inputs."""
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
    sums = torch.exp2(scores - highest)
    ways = {
        "lazy, rounded in tile 0 too": (everywhere, full),
        "lazy, sum of all of P": (rounded, full),
        "lazy, sum of the rounded P": (rounded, None),
        "lazy, truncated, sum of that": (truncated, None),
        "running maximum": (running(scores, highest), sums),
    }
    found = {}
    for name, (p, summed) in ways.items():
        off = weighted(p, summed, v).half().double() - exact
        by_row = off.norm(dim=1) / exact.norm(dim=1)
        found[name] = torch.stack([off.norm() / exact.norm(), by_row.max()])
    return found


def weighted(p: torch.Tensor, summed: torch.Tensor | None, v: torch.Tensor) -> torch.Tensor:
    """O [S, D]: P [S, S] times V over the row sums of `summed`, or of P itself."""
    return (p.double() @ v.double()) / (p if summed is None else summed).double().sum(1)[:, None]


def running(scores: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
    """P rounded against the maximum so far, told against the last one."""
    p, so_far = torch.empty_like(scores), torch.full_like(highest, -math.inf)
    for start in range(0, scores.shape[1], KEYS_OF_A_RUNNING_TILE):
        tile = scores[:, start : start + KEYS_OF_A_RUNNING_TILE]
        so_far = torch.maximum(so_far, tile.amax(1, keepdim=True))
        rounded = torch.exp2(tile - so_far).half().float()
        p[:, start : start + KEYS_OF_A_RUNNING_TILE] = rounded * torch.exp2(so_far - highest)
    return p


def main() -> int:
    """One line a shape and way: the mean whole error, the worst row of all draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=2)
    args = parser.parse_args()
    for headdim, keys, rows, seqlen in SHAPES:
        print(f"headdim {headdim}, tiles of {keys} keys, items of {rows} rows, {seqlen} tokens")
        draws = [errors(headdim, keys, rows, seqlen, seed) for seed in range(args.draws)]
        for name in draws[0]:
            whole, worst = torch.stack([draw[name] for draw in draws]).unbind(1)
            print(f"  {name:30} whole {whole.mean():.2e}   worst row {worst.max():.2e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
