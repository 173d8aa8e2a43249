"""Which GPUs this process may use: NVML's, cut down to CUDA_VISIBLE_DEVICES where that is set."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from harness.errors import UnavailableError, UsageError
from harness.measure.machine import inspect_machine, nvml
from harness.schema import Machine

MEMORY_STEP_GIB = 8  # GPU memory is asked for in steps of this


def gpu_uuids() -> list[str]:
    """UUIDs of all GPUs in NVML's order."""
    with nvml() as lib:
        if lib is None:
            return []
        handles = [lib.nvmlDeviceGetHandleByIndex(i) for i in range(lib.nvmlDeviceGetCount())]
        names = [lib.nvmlDeviceGetUUID(handle) for handle in handles]
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def visible(uuids: list[str], environment: Mapping[str, str] = os.environ) -> list[int]:
    """NVML indices that CUDA_VISIBLE_DEVICES (numbers or UUIDs) leaves; all where it is not set.

    Numbers are taken as NVML's. CUDA may count in another order where the GPUs of a host differ,
    but both are numberings of the same set, and the run itself is bound to the UUID.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(len(uuids)))
    found = []
    for word in (part.strip() for part in text.split(",")):
        matches = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        if word.isdigit() and int(word) < len(uuids):
            matches = [int(word)]
        if not matches:  # as CUDA does: what follows an unknown one does not count
            break
        found.append(matches[0])
    return found


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
    if gpu == "auto":
        there = visible(gpu_uuids())
        return inspect_machine(there[0] if there else None)
    return inspect_machine(int(gpu))


def memory_steps(memory_gib: float) -> int:
    """Whole steps of memory: 139.8 GiB → 136."""
    return int(memory_gib // MEMORY_STEP_GIB) * MEMORY_STEP_GIB
