"""The hot path: a clock read between two calls. Imports nothing of the house.

The sample of a burst is the mean over its K calls, so doing all the work in one call gains nothing.
On a GPU one event ends a call and begins the next: nothing lies between two calls, and what holding
a result takes, if it takes anything, is in the time of the call that returned it.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

Keep = Callable[[Any, int], None]  # takes a result and the number of its call


def gpu_burst(
    function: Callable[..., Any],
    calls: Sequence[tuple[torch.Tensor, ...]],
    kwargs: dict[str, Any],
    keep: Keep,
    events: Sequence[torch.cuda.Event],
    after: Callable[[], None],
) -> list[float]:
    """Call `function` once per entry of `calls`; milliseconds between `events` [K + 1].

    `after` is called when all is queued: it tells the judge's stream that the outputs are there.
    """
    stream = torch.cuda.current_stream()
    events[0].record(stream)
    for index, (inputs, end) in enumerate(zip(calls, events[1:], strict=True)):
        result = function(*inputs, **kwargs)
        with torch.cuda.stream(stream):  # whatever the call has made the current one
            keep(result, index)
        end.record(stream)
    with torch.cuda.stream(stream):
        after()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(events)]


def cpu_burst(
    function: Callable[..., Any],
    calls: Sequence[tuple[torch.Tensor, ...]],
    kwargs: dict[str, Any],
    keep: Keep,
) -> list[float]:
    """The same with the wall clock."""
    calls_ms = []
    for index, inputs in enumerate(calls):
        start = time.perf_counter()
        result = function(*inputs, **kwargs)
        end = time.perf_counter()
        keep(result, index)
        calls_ms.append((end - start) * 1e3)
    return calls_ms
