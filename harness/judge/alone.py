"""Is the judge alone on the GPU, and how fast do its SMs run? Two small kernels of the judge's.

The first, of one thread, reads the GPU's clock again and again and keeps the longest gap.

Contexts of two processes share a GPU by turns of some two milliseconds. So a kernel that runs
longer than a turn, and sees no gap between two readings of the clock, has shared the GPU with
nobody. This asks no other process for anything, so it also finds what the driver's lock does not
know of: work of a second copy of the driver's library, or behind an answer that was forged. It runs
beside the judge's references, on one SM.

The second stores each SM's counter of cycles, which goes on whoever computes: two readings tell at
what clock the SMs ran in between, and no worker is asked.
"""

import ctypes

import torch

from harness.process.cuda.driver import CudaDriver

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
#: Stores `%clock64` of the SM that a block is on to its place in `out`; some blocks for each SM.
MOST_SMS, BLOCKS = 256, 1024
SM_CYCLES = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry sm_cycles(.param .u64 out)
{
    .reg .u64 %out, %now, %place;
    .reg .u32 %sm;
    .reg .pred %beyond;
    mov.u32 %sm, %smid;
    setp.ge.u32 %beyond, %sm, 256;
    @%beyond ret;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    mul.wide.u32 %place, %sm, 8;
    add.u64 %out, %out, %place;
    mov.u64 %now, %clock64;
    st.global.u64 [%out], %now;
    ret;
}
"""


class _Kernel:
    """A kernel of one thread a block, loaded into the judge's context."""

    def __init__(self, ptx: bytes, name: bytes) -> None:
        torch.zeros(1, device="cuda")  # makes torch's primary context current on this thread
        self._driver = CudaDriver()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver.call("cuModuleLoadData", ctypes.byref(module), ptx)
        self._driver.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, name)

    def launch(self, stream: torch.cuda.Stream, blocks: int, *numbers: int) -> None:
        """Queue it; `numbers`: its parameters, 64 bits each."""
        values = [ctypes.c_uint64(number) for number in numbers]
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        grid, block, smem_bytes = (blocks, 1, 1), (1, 1, 1), 0
        launch = (*grid, *block, smem_bytes, stream.cuda_stream, arguments, None)
        self._driver.call("cuLaunchKernel", self._kernel, *launch)


class Watch:
    """Of the longest gap: `begin`, work, synchronise, `longest_gap_ms`."""

    def __init__(self) -> None:
        self._kernel = _Kernel(PTX, b"longest_gap")
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._gap_ns = torch.zeros(1, dtype=torch.int64, device="cuda")

    def begin(self) -> None:
        """Start watching, on a stream of its own, beside whatever is queued next."""
        self._kernel.launch(self._stream, 1, self._gap_ns.data_ptr(), WATCH_NS)

    def longest_gap_ms(self) -> float:
        """How long the GPU was away at a stretch; waits for the kernel's end."""
        self._stream.synchronize()
        return float(self._gap_ns.item()) / 1e6


class SmCycles:
    """Readings of all SMs' counters of cycles, each into a row of its own; allocates once."""

    def __init__(self, most: int) -> None:
        self._kernel = _Kernel(SM_CYCLES, b"sm_cycles")
        self._rows = torch.zeros(most, MOST_SMS, dtype=torch.int64, device="cuda")

    def read(self, row: int) -> None:
        """Queue a reading on the current stream."""
        self._kernel.launch(torch.cuda.current_stream(), BLOCKS, self._rows[row].data_ptr())

    def since_first(self, readings: int) -> list[float]:
        """Cycles from the first of so many readings to each, as half of the SMs have more; or 0."""
        rows = self._rows[:readings].cpu()
        run = (rows > 0).all(dim=0)
        since = (rows - rows[:1])[:, run].double()
        return since.median(dim=1).values.tolist() if bool(run.any()) else [0.0] * readings
