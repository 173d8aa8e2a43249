"""The hot path of a stretch: calls back to back for seconds, each on windows of its own.

No event lies between two calls: two of them stand around the calls that count.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from harness.process.cuda.arena_layout import nbytes, runs, windows
from harness.process.cuda.driver import timer
from harness.process.cuda.shared_memory import DTYPES, Arena
from harness.worker.burst import Keep


def windows_of(
    arena: Arena, specs: Sequence[tuple[list[int], str]], alone: Sequence[bool], tensors: int,
    calls: int, seed: int,
) -> Iterator[tuple[torch.Tensor, ...]]:  # fmt: skip
    """The arguments of each call; `specs`: their shapes and types, `tensors`: how many each has."""
    placed = runs([nbytes(tuple(shape), dtype) for shape, dtype in specs], alone, tensors)
    for begins in windows(placed, calls, seed):
        yield tuple(
            arena.room[run.start + begin : run.start + begin + run.size]
            .view(DTYPES[dtype])
            .view(shape)
            for run, begin, (shape, dtype) in zip(placed, begins, specs, strict=True)
        )


def gpu_stretch(
    function: Callable[..., Any],
    calls: Iterable[tuple[torch.Tensor, ...]],
    kwargs: dict[str, Any],
    before: Callable[[int], None],
    keep: Keep,
    counted_from: int,
) -> float:
    """Call `function` on each of `calls`; milliseconds a call from `counted_from` to the last.

    before: told the number of each call that is to come.
    """
    stream, start, end, done = torch.cuda.current_stream(), timer(), timer(), 0
    for inputs in calls:
        if done == counted_from:
            start.record(stream)
        before(done)
        result = function(*inputs, **kwargs)
        with torch.cuda.stream(stream):  # whatever the call has made the current one
            keep(result, done)
        done += 1
    end.record(stream)
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / (done - counted_from)
