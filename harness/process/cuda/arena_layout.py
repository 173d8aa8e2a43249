"""How tensors lie in an arena, for the engine that sizes it and those who cut it. No torch.

A stretch has thousands of calls and room for the inputs of some ten. So that no call has been
answered before, an argument that is drawn by itself is a window into all its tensors, which lie
side by side: with ten tensors of 64 MiB there are 590,000 places where one can begin, chosen anew
for each argument and call, and an answer that was kept is of no use. Arguments that belong together
(o and lse to q, k and v) move together, from tensor to tensor.

    q   [ tensor 0 ........ | tensor 1 ........ | tensor 2 ........ ]
    call 0         [ q ............. ]
    call 1   [ q ............. ]
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALIGN = 1024  # bytes; TMA wants 16, 128-byte swizzle 1024
PIECE_BYTES = 2 << 20  # of device memory: what the driver gives, and torch asks for, at the least
CONTROL_BYTES = PIECE_BYTES  # of a device arena, behind the room: a page for flag and table
#: Of the outputs' arena on a GPU, each of whole pieces: one for slots that results are copied into,
#: two that the calls allocate from.
OUTPUT_SHARES = 3
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4}


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one contiguous tensor; KeyError on an element type no arena holds."""
    return math.prod(shape) * ELEMENT_BYTES[dtype]


def aligned(size: int, step: int = ALIGN) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


# --------------------------------------------------------------------------- inputs of a stretch


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
        found.append(Run(aligned(found[-1].end) if found else 0, size, tensors, free))
    return found


def windows(arguments: Sequence[Run], calls: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Of each call: the byte of its run at which each argument begins."""
    rng = random.Random(seed)
    for _ in range(calls):
        together = rng.randrange(arguments[0].tensors)
        yield tuple(
            rng.randrange((run.tensors - 1) * run.size // ALIGN + 1) * ALIGN
            if run.alone
            else together * run.stride
            for run in arguments
        )
