"""What a node of a cluster offers, as the resources of `ray start --resources`.

    ray start --address=HEAD:6379 --resources="$(python -m harness.campaign.node)"

`sku:nvidia-h200` and, for every step of 8 GiB up to its memory, `gpu_memory_gib:136`: as many of
each as the node has such GPUs. A unit asks for one of the step that covers its need, so it cannot
land on less.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable

from harness.campaign.devices import MEMORY_STEP_GIB, memory_steps
from harness.campaign.unit import Unit
from harness.measure.machine import gpu_uuids, inspect_machine, visible
from harness.schema import Machine


def offers(machines: Iterable[Machine]) -> dict[str, int]:
    """Resources of a node with these GPUs."""
    found: Counter[str] = Counter()
    for machine in machines:
        found[f"sku:{machine.slug}"] += 1
        for step in range(MEMORY_STEP_GIB, memory_steps(machine.memory_gib) + 1, MEMORY_STEP_GIB):
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
    print(json.dumps(offers(inspect_machine(index) for index in visible(gpu_uuids()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
