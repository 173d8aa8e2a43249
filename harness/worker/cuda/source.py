"""A plain .cu file as a submission: NVRTC compiles it, the driver launches it.

    instances     the launch section: defaults, kernel instances, arithmetic
    nvrtc         .cu -> cubins in a cache; no GPU
    launch        cubins on a device, TMA descriptors, prepared launches

These files import nothing of the harness but one another: they run next to code nobody vouches for.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.worker.cuda.instances import with_defaults
from harness.worker.cuda.launch import Device, Launch
from harness.worker.cuda.nvrtc import CudaSourceError, arch_name, bindings, compile_source


def get_ready() -> None:
    """Load what `load` and the first launch need, no submission's file; `load` says what lacks."""
    with contextlib.suppress(CudaSourceError):
        bindings("driver")
        bindings("nvrtc").nvrtcVersion()


def load(folder: Path, entry: str, launch: Mapping[str, Any], cache: Path) -> Callable[..., Any]:
    """custom_attention_forward(q, k, v, causal=True, sm_scale=None) for a plain .cu file.

    q, k, v: (batch, nheads, seqlen, headdim) on a CUDA device. Compiles here and now for the
    current device, unless the cache holds it; calls only look up a prepared launch.
    """
    import torch

    launch = with_defaults(launch)
    compile_source(folder, entry, launch, arch_name(*torch.cuda.get_device_capability()), cache)

    sources: dict[int, Device] = {}
    launches: dict[Any, Launch] = {}

    def custom_attention_forward(
        q: Any, k: Any, v: Any, causal: bool = True, sm_scale: float | None = None
    ) -> Any:
        device = q.device.index
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        key = (device, q.dtype, q.shape, causal, sm_scale, q.stride(), k.stride(), v.stride())
        prepared = launches.get(key)
        if prepared is None:
            if device not in sources:
                sources[device] = Device(folder, entry, launch, cache)
            scale = 1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
            prepared = launches[key] = Launch(sources[device], q, k, v, bool(causal), scale)
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        prepared(addresses, torch.cuda.current_stream(device).cuda_stream)
        return out

    return custom_attention_forward
