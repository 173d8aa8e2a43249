"""How long the driver takes to open CUDA contexts that are asked for at once, on one GPU and on several.

    python benchmarks/contexts.py              # 10 and 20 on one GPU
    python benchmarks/contexts.py --gpus 2     # and the same numbers over two

A process each, forked before any of them touches the driver, lets go by one event; the figure counts from
there until the last has its context and 512 MiB. Needs a GPU, no torch.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import sys
import time
from typing import Any

COUNTS = (10, 20)
BYTES = 512 << 20
PATIENCE_S = 60


def opened(gpu: int, go: Any, leave: Any, told: Any) -> None:
    """Open a context on `gpu` once `go` is set, tell how it went, keep it until `leave` is."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    go.wait()
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError as cause:
        told.put(str(cause))
        return
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or driver.cuCtxSetCurrent(context)
        or driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES))
    )
    told.put(f"the driver said {failed}" if failed else "")
    leave.wait()


def seconds_for(count: int, gpus: int) -> float:
    """From the word go until all `count` have a context, spread over `gpus`; SystemExit if one fails."""
    fork = multiprocessing.get_context("fork")
    go, leave, told = fork.Event(), fork.Event(), fork.Queue()
    processes = [
        fork.Process(target=opened, args=(number % gpus, go, leave, told))
        for number in range(count)
    ]
    for process in processes:
        process.start()
    time.sleep(0.3)  # all of them wait at `go`
    begun = time.monotonic()
    go.set()
    failed = [why for why in (told.get(timeout=PATIENCE_S) for _ in processes) if why]
    seconds = time.monotonic() - begun
    leave.set()
    for process in processes:
        process.join()
    if failed:
        raise SystemExit(f"no context: {failed[0]}\n  next: nvidia-smi")
    return seconds


def main() -> int:
    """One line a number and a spread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gpus", type=int, default=1)
    args = parser.parse_args()
    for gpus in sorted({1, args.gpus}):
        for count in COUNTS:
            print(f"{count} contexts on {gpus} GPUs: all in {seconds_for(count, gpus):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
