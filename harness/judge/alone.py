"""Is the judge alone on the GPU? A one-thread kernel reads the GPU's clock, keeps the longest gap.

Contexts of two processes share a GPU by turns of some two milliseconds. So a kernel that runs
longer than a turn, and sees no gap between two readings of the clock, has shared the GPU with
nobody. This asks no other process for anything, so it also finds what the driver's lock does not
know of: work of a second copy of the driver's library, or behind an answer that was forged. It runs
beside the judge's references, on one SM.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

#: Longer than two turns of another context.
WATCH_NS = 6_000_000
#: Reads `%globaltimer` for `duration` nanoseconds; stores the longest time between two readings to
#: `out`.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry longest_gap(.param .u64 out, .param .u64 duration)
{
    .reg .u64 %out, %duration, %start, %last, %now, %longest, %gap;
    .reg .pred %more;
    ld.param.u64 %out, [out];
    ld.param.u64 %duration, [duration];
    cvta.to.global.u64 %out, %out;
    mov.u64 %start, %globaltimer;
    mov.u64 %last, %start;
    mov.u64 %longest, 0;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %gap, %now, %last;
    max.u64 %longest, %longest, %gap;
    mov.u64 %last, %now;
    sub.u64 %gap, %now, %start;
    setp.lt.u64 %more, %gap, %duration;
    @%more bra again;
    st.global.u64 [%out], %longest;
    ret;
}
"""


class Watch:
    """The kernel, loaded into the judge's context: `begin`, work, synchronise, `longest_gap_ms`."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # makes torch's primary context current on this thread
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"longest_gap")
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._gap_ns = torch.zeros(1, dtype=torch.int64, device="cuda")

    def begin(self) -> None:
        """Start watching, on a stream of its own, beside whatever is queued next."""
        out, duration = ctypes.c_uint64(self._gap_ns.data_ptr()), ctypes.c_uint64(WATCH_NS)
        arguments = (ctypes.c_void_p * 2)(
            *(ctypes.cast(ctypes.byref(a), ctypes.c_void_p) for a in (out, duration))
        )
        one = [ctypes.c_uint(1)] * 6  # grid and block
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        self._call("cuLaunchKernel", self._kernel, *one, ctypes.c_uint(0), stream, arguments, None)

    def longest_gap_ms(self) -> float:
        """How long the GPU was away at a stretch; waits for the kernel's end."""
        self._stream.synchronize()
        return float(self._gap_ns.item()) / 1e6

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._driver, name)(*args)
        if code:
            raise RuntimeError(f"{name}: CUDA error {code}")
