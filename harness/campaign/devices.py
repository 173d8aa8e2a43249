"""Which GPUs a campaign may use."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import UnavailableError, UsageError
from harness.measure.machine import AUTO, gpu_uuids, inspect_machine, visible
from harness.schema import Machine

MEMORY_STEP_GIB = 8  # GPU memory is asked for in steps of this


def choose_gpus(
    count: int | None, first: int = 0, fits: Callable[[Machine], bool] = lambda machine: True
) -> list[str]:
    """Indices, as text, of the first `count` visible GPUs from `first` on that fit (None: all)."""
    there = [index for index in visible(gpu_uuids()) if index >= first]
    here = [index for index in there if fits(inspect_machine(index))]
    if not here:
        what = f"none of {len(there)} GPUs here fits" if there else "no GPU is visible here"
        raise UnavailableError(f"--engine local: {what}", "python run.py doctor")
    if count is not None and count > len(here):
        raise UsageError(
            f"--gpus {count}: {len(here)} such GPUs here", f"use --gpus {len(here)} or --gpus all"
        )
    return [str(index) for index in here[:count]]


def machine_of(gpu: str) -> Machine:
    """`gpu` is an NVML index, `none`, or `auto`: the first visible one."""
    if gpu == "none":
        return inspect_machine(None)
    return inspect_machine(AUTO if gpu == AUTO else int(gpu))


def memory_steps(memory_gib: float) -> int:
    """Whole steps of memory: 139.8 GiB → 136."""
    return int(memory_gib // MEMORY_STEP_GIB) * MEMORY_STEP_GIB
