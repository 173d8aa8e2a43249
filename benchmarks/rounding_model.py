"""What each way to round P costs an attention in half precision: a model on the CPU, one head, row by row.

    python benchmarks/rounding_model.py            # three tile shapes, two draws: a minute, 4 GB
    python benchmarks/rounding_model.py --rises    # headdim 256, how often a key becomes the reference: seconds

P is rounded to half before it multiplies V, everything else is float64, so that the error is of the rounding (and of the
half that O is stored in) alone. `lazy` refers P to the maximum of the row's first tile and counts P in full in tile 0 of the
first item, as rung 8 of cuda_hopper does; its way out for rows that outgrow the reference is left out (no such row is drawn).
`few keys in full` counts P in full in all tiles of that item, as rung 11 does; `rises past 2` takes a new reference whenever
a P passes 2, for all 16 rows of a warp, and says for how many tiles of a warpgroup (four warps) that happens.

--rises plays cuda_hopper's softmax at headdim 256 on normal inputs, row by row and thread by thread: tiles of 80 keys, a quad of
threads a row, 16 rows a warp. A warp rises when a thread's sum of a tile's P passes max(least, HEAVY * sqrt(tiles) +
0.5) of its usual sum; then each of its rows takes the maximum so far as its reference. Printed: the share of a warp's
trips that rise, and whole, 99.9 % and worst relative L2 of rows (1e-4) against float64. `running`: a running maximum.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
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


# ------------------------------------------------------------------------------------------- rises


HEADDIM, KV_ROWS, WARP_ROWS, HEAVY = 256, 80, 16, 0.3
P_LIMIT = KV_ROWS / 4 + 32
LEASTS: tuple[float | None, ...] = (None, 0.0, 2.0, 2.5, 3.0, math.inf)  # None: a running maximum
CASES = ((512, True, 8), (2048, True, 3), (512, False, 6), (1024, False, 4), (2048, False, 3))
QUAD = np.arange(KV_ROWS) % 8 // 2  # which thread of the quad holds a column


def half(x: np.ndarray) -> np.ndarray:
    """Rounded to fp16."""
    return x.astype(np.float16).astype(np.float64)


class Head:
    """One head's scores in tiles, its V, and what is right."""

    def __init__(self, rng: np.random.Generator, seqlen: int, causal: bool) -> None:
        q, k, v = (half(rng.standard_normal((seqlen, HEADDIM))) for _ in range(3))
        scores = q @ k.T * HEADDIM**-0.5 * math.log2(math.e)
        if causal:
            scores[np.triu_indices(seqlen, 1)] = -np.inf
        p = np.exp2(scores - scores.max(1, keepdims=True))
        self.want = (p / p.sum(1, keepdims=True)) @ v
        self.tiles = -(-seqlen // KV_ROWS)
        pad = self.tiles * KV_ROWS - seqlen
        padded = np.pad(scores, ((0, 0), (0, pad)), constant_values=-np.inf)
        self.scores = padded.reshape(seqlen, self.tiles, KV_ROWS)
        self.v = np.pad(v, ((0, pad), (0, 0))).reshape(self.tiles, KV_ROWS, HEADDIM)
        last = (np.arange(seqlen) // 64 + 1) * 64 if causal else np.full(seqlen, seqlen)
        self.mine = (np.minimum(last, seqlen) - 1) // KV_ROWS + 1  # tiles of a row's warpgroup


def attend(head: Head, least: float | None) -> tuple[np.ndarray, int, int]:
    """The output rounded to fp16, and how many of how many trips of a warp rose."""
    m = head.scores[:, 0].max(1)
    p = np.exp2(head.scores[:, 0] - m[:, None])
    total, rose, trips = p.sum(1), 0, 0
    grow = np.maximum(least or 0.0, HEAVY * np.sqrt(head.mine) + 0.5)
    limit = np.minimum(total / 4 * grow, P_LIMIT)
    o = (
        np.where((head.mine == 1)[:, None], p, half(p)) @ head.v[0]
    )  # rows of one tile count P in full
    for tile in range(1, head.tiles):
        active = head.mine > tile
        p = np.exp2(head.scores[:, tile] - m[:, None])
        sums = np.stack([p[:, thread == QUAD].sum(1) for thread in range(4)], 1)
        hot = (sums > limit[:, None]).any(1) & active
        warps = hot.reshape(-1, WARP_ROWS).any(1)
        rose, trips = rose + warps.sum(), trips + active.reshape(-1, WARP_ROWS).any(1).sum()
        rises = active if least is None else np.repeat(warps, WARP_ROWS) & active
        x = np.where(rises, np.maximum(1, p.max(1)), 1.0)
        m, p, total, o, limit = m + np.log2(x), p / x[:, None], total / x, o / x[:, None], limit / x
        total = total + p.sum(1)
        o += half(p) @ head.v[tile]
    return half(o / total[:, None]), int(rose), int(trips)


def print_rises() -> int:
    """One line a case and rule."""
    rng = np.random.default_rng(2)
    for seqlen, causal, count in CASES:
        heads = [Head(rng, seqlen, causal) for _ in range(count)]
        for least in LEASTS:
            found = [attend(head, least) for head in heads]
            far = [o - head.want for head, (o, _, _) in zip(heads, found, strict=True)]
            want = np.concatenate([head.want for head in heads])
            error = np.concatenate(far)
            rows = np.linalg.norm(error, axis=1) / np.linalg.norm(want, axis=1) * 1e4
            share = 100 * sum(rose for _, rose, _ in found) / sum(trips for _, _, trips in found)
            rule = "running    " if least is None else f"least {least:5.1f}"
            print(
                f"{seqlen:5d} {'causal' if causal else 'full  '} {rule} | rises "
                f"{'-' if least is None else f'{share:.1f} %':>6s} | whole "
                f"{np.linalg.norm(error) / np.linalg.norm(want) * 1e4:.2f}, 99.9 % "
                f"{np.quantile(rows, 0.999):.2f}, worst {rows.max():.2f}",
                flush=True,
            )
    return 0


def main() -> int:
    """One line a shape and way: the mean whole error, the worst row of all draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument(
        "--rises", action="store_true", help="headdim 256 in its tiles, by the rule of cuda_hopper"
    )
    args = parser.parse_args()
    if args.rises:
        return print_rises()
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
