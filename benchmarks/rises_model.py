"""How often a key becomes the reference at headdim 256, and what that does to the error, without a GPU.

    python benchmarks/rises_model.py            # seconds

Plays cuda_hopper's softmax at headdim 256 on normal inputs, row by row and thread by thread: tiles of 80 keys, a quad of
threads a row, 16 rows a warp. A warp rises when a thread's sum of a tile's P passes max(least, HEAVY * sqrt(tiles) +
0.5) of its usual sum; then each of its rows takes the maximum so far as its reference. Printed: the share of a warp's
trips that rise, and whole, 99.9 % and worst relative L2 of rows (1e-4) against float64. `running`: a running maximum.
"""

from __future__ import annotations

import math

import numpy as np

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


def main() -> None:
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


if __name__ == "__main__":
    main()
