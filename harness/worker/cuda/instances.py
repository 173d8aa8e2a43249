"""The `launch:` section of a .cu: its defaults, and the kernel instances that it names.

The section has been validated (harness/catalog/launch_spec.py); here it is a plain mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

C_TYPES = {"fp16": "__half", "bf16": "__nv_bfloat16", "fp32": "float"}


def with_defaults(launch: Mapping[str, Any]) -> dict[str, Any]:
    """`launch` with every optional key present; the defaults of harness/catalog/launch_spec.py."""
    optional = {"causal": "both", "dtypes": ["fp16"], "smem_bytes": 0}
    maps = launch.get("tensor_maps", {})
    return {
        "flags": launch.get("flags", []),
        "kernels": [{**optional, **kernel} for kernel in launch["kernels"]],
        "tensor_maps": {name: {"swizzle": "none", **spec} for name, spec in maps.items()},
    }


def instances(launch: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    """(name expression, kernel entry, {headdim, causal, dtype}) for every case of the manifest."""
    for kernel in with_defaults(launch)["kernels"]:
        masks = {"both": (True, False), "true": (True,), "false": (False,)}[kernel["causal"]]
        for headdim in kernel["headdims"]:
            for causal in masks:
                for dtype in kernel["dtypes"]:
                    case = {"headdim": headdim, "causal": causal, "dtype": dtype}
                    yield fill_name(kernel["name"], **case), kernel, case


def fill_name(name: str, headdim: int, causal: bool, dtype: str) -> str:
    """The template expression with {D}, {causal} and {dtype} replaced."""
    filled = {"D": str(headdim), "causal": str(causal).lower(), "dtype": C_TYPES[dtype]}
    for key, value in filled.items():
        name = name.replace(f"{{{key}}}", value)
    return name
