"""The GPUs of a node: which of them a campaign may use, and what they offer to a cluster.

    ray start --address=HEAD:6379 --resources="$(python -m harness.campaign.node)"

`sku:nvidia-h200` and, for every step of 8 GiB up to its memory, `gpu_memory_gib:136`: as many of
each as the node has such GPUs. A unit asks for one of the step that covers its need, so it cannot
land on less.
"""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable

from harness.campaign.unit import Unit
from harness.errors import UnavailableError, UsageError
from harness.measure.machine import AUTO, gpu_uuids, inspect_machine, visible
from harness.process.text import dumps
from harness.schema import Machine

MEMORY_STEP_GIB = 8  # GPU memory is asked for in steps of this


def choose_gpus(
    count: int | None, first: int = 0, fits: Callable[[Machine], bool] = lambda machine: True
) -> list[str]:
    """Indices, as text, of the first `count` visible GPUs from `first` on that fit (None: all)."""
    there = [index for index in visible(gpu_uuids()) if index >= first]
    if not (here := [index for index in there if fits(inspect_machine(index))]):
        what = f"none of {len(there)} GPUs here fits" if there else "no GPU is visible here"
        raise UnavailableError(f"--engine local: {what}", "python run.py doctor")
    if count is not None and count > len(here):
        hint = f"use --gpus {len(here)} or --gpus all"
        raise UsageError(f"--gpus {count}: {len(here)} such GPUs here", hint)
    return [str(index) for index in here[:count]]


def machine_of(gpu: str) -> Machine:
    """`gpu` is an NVML index, `none`, or `auto`: the first visible one."""
    if gpu == "none":
        return inspect_machine(None)
    return inspect_machine(AUTO if gpu == AUTO else int(gpu))


def offers(machines: Iterable[Machine]) -> dict[str, int]:
    """Resources of a node with these GPUs."""
    found: Counter[str] = Counter()
    for machine in machines:
        found[f"sku:{machine.slug}"] += 1
        for step in range(MEMORY_STEP_GIB, int(machine.memory_gib) + 1, MEMORY_STEP_GIB):
            found[f"gpu_memory_gib:{step}"] += 1
    return dict(found)


def wants(unit: Unit) -> dict[str, float]:
    """Resources that `unit` takes of its node."""
    if not unit.needs_gpu:
        return {}
    asked = {f"sku:{unit.sku}": 1.0} if unit.sku else {}
    if unit.gpu_memory_gib > 0:
        step = math.ceil(unit.gpu_memory_gib / MEMORY_STEP_GIB) * MEMORY_STEP_GIB
        asked[f"gpu_memory_gib:{step}"] = 1.0
    return asked


def main() -> int:
    """Print the node's resources."""
    print(dumps(offers(inspect_machine(index) for index in visible(gpu_uuids()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
