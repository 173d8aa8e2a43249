"""Whose bits are these? A timed output beside what libraries make of the same inputs.

Two kernels that round in different places agree bit for bit in half of the elements, a kernel and
itself in all of them. Which kernels ran is otherwise known from a profiler, which a submission can
see and answer with other work; a timed burst looks like every other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import torch

Outputs = Sequence[torch.Tensor]


def likeness(outputs: Outputs, libraries: Iterable[tuple[str, Outputs]]) -> dict[str, float]:
    """Library → share of bit-equal elements, the middle one of several results.

    Of three gradients one may be summed in another order each time, by atomics, and dv comes out
    much alike from anybody's kernel. outputs: one call's results, two bytes an element; libraries:
    what each makes of it.
    """
    return {
        name: median(_share(mine, its) for mine, its in zip(outputs, theirs, strict=True))
        for name, theirs in libraries
    }


def _share(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    same = mine.contiguous().view(torch.int16) == theirs.contiguous().view(torch.int16)
    return float(same.float().mean())
