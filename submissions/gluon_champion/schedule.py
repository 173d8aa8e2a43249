"""Which program attends which q tile, decided on the host once for every shape.

A persistent program keeps its warps, barriers and the pipeline of loads from one q tile to the
next, but a fixed stride over the tiles leaves some programs with more keys than others. Here the
tiles are dealt out the way an ideal dynamic scheduler would: always the next one to the program
that is done first.
"""

import heapq

# What a q tile costs beside its kv tiles: fill, first tile, store. In keys of 64 query rows.
FIXED_COST_KEYS = 90


def work_items(heads, q_tiles, section):
    """head * q_tiles + q tile, in the order of starting.

    Heads come in sections whose keys and values fit the L2 cache together; within a section the
    q tiles with the most keys come first, so that the short ones fill the end.
    """
    for first in range(0, heads, section):
        for tile in reversed(range(q_tiles)):
            for head in range(first, min(first + section, heads)):
                yield head * q_tiles + tile


def deal(heads, seqlen, block_m, block_n, causal, section, programs):
    """Rows [count, item, item, ...] of equal width, one a program; at least one item to spare."""
    q_tiles = -(-seqlen // block_m)
    queue = [(0, program) for program in range(programs)]
    items = [[] for _ in range(programs)]
    for item in work_items(heads, q_tiles, section):
        last_row = (item % q_tiles + 1) * block_m
        keys = min(last_row, seqlen) if causal else seqlen
        busy, program = heapq.heappop(queue)
        items[program].append(item)
        cost = -(-keys // block_n) * block_n + FIXED_COST_KEYS
        heapq.heappush(queue, (busy + cost, program))
    width = max(len(own) for own in items) + 2
    return [[len(own), *own] + [0] * (width - 1 - len(own)) for own in items]
