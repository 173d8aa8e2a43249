"""Which GPU kernels a submission launches: a profiler around its call and around nothing else.

The harness waits, copies and clears on the same stream; none of that is the submission's work, so
the profiler is off when it happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

MAX_KERNELS = 24
MAX_NAME = 300


def naming(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """`function`; what its calls run on the GPU is appended to `names`, longest first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with listening() as found:
            result = function(*args, **kwargs)
        names[:] = dict.fromkeys([*names, *(name[:MAX_NAME] for name in found)])
        del names[MAX_KERNELS:]
        return result

    return call


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Fills the list, on the way out, with what ran on the GPU inside the block."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    names: list[str] = []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield names
        torch.cuda.synchronize()
    rows = [event for event in profiler.key_averages() if event.device_type.name == "CUDA"]
    rows.sort(key=lambda event: -event.self_device_time_total)
    names += [event.key for event in rows]
