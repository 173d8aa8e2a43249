"""Which inputs each call of a stretch gets, worked out alike by the judge and the worker. No torch.

A stretch has thousands of calls and room for the inputs of some ten. So that no call has been
answered before, an argument that is drawn by itself is a window into all its tensors, which lie
side by side: with ten tensors of 64 MiB there are 590,000 places where one can begin, chosen anew
for each argument and call, and an answer that was kept is of no use. Arguments that belong together
(o and lse to q, k and v) move together, from tensor to tensor.

    q   [ tensor 0 ........ | tensor 1 ........ | tensor 2 ........ ]
    call 0         [ q ............. ]
    call 1   [ q ............. ]
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.process.cuda.arena_layout import ALIGN, aligned


@dataclass(frozen=True)
class Run:
    """The tensors of one argument: `tensors` of `size` bytes, the first at byte `start`."""

    start: int
    size: int
    tensors: int
    alone: bool

    @property
    def stride(self) -> int:
        """Bytes from one tensor to the next: no hole where windows lie across."""
        return self.size if self.alone else aligned(self.size)

    @property
    def end(self) -> int:
        """Byte behind the last tensor."""
        return self.start + self.tensors * self.stride


def runs(sizes: Sequence[int], alone: Sequence[bool], tensors: int) -> list[Run]:
    """Where the tensors of each argument lie in an arena; `sizes` in bytes."""
    found: list[Run] = []
    for size, free in zip(sizes, alone, strict=True):
        start = aligned(found[-1].end) if found else 0
        found.append(Run(start, size, tensors, free))
    return found


def windows(arguments: Sequence[Run], calls: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Of each call: the byte of its run at which each argument begins."""
    rng = random.Random(seed)
    for _ in range(calls):
        together = rng.randrange(arguments[0].tensors)
        yield tuple(_begin(run, together, rng) for run in arguments)


def _begin(run: Run, together: int, rng: random.Random) -> int:
    if not run.alone:
        return together * run.stride
    return rng.randrange((run.tensors - 1) * run.size // ALIGN + 1) * ALIGN
