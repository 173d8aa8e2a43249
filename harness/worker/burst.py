"""The hot path: two clock reads and a call. Imports nothing of the house.

The sample of a burst is the mean over its K calls, so doing all the work in one call gains nothing.
Every result is copied to the judge's memory on the same stream, right behind its end event: work that
was left on another stream is not in the copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Takes a result; True if bringing it into one piece was work that belongs to the call.
Keep = Callable[[Any, int], bool]


def gpu_burst(
    function: Callable[..., Any],
    calls: Sequence[tuple[torch.Tensor, ...]],
    kwargs: dict[str, Any],
    keep: Keep,
    events: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]],
    after: Callable[[], None],
) -> list[float]:
    """Call `function` once per entry of `calls`; return milliseconds between each pair of events.

    `after` is called when the last copy is queued: it tells the judge's stream that the outputs are there.
    """
    stream = torch.cuda.current_stream()
    for index, (inputs, (start, end)) in enumerate(zip(calls, events, strict=True)):
        start.record(stream)
        result = function(*inputs, **kwargs)
        end.record(stream)
        if keep(result, index):
            end.record(stream)
    after()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


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
