"""How long a GPU takes to feel its power limit, and how long it remembers: SDPA through cuDNN, official shapes.

Per shape: latency along one unbroken stretch of calls from a rested chip; then eight calls after 150 ms of work
and a pause; then eight calls behind shorter stretches. Says how a burst of a few milliseconds relates to what
`do_bench` reports after a tenth of a second.

    python benchmarks/power_steps.py
"""

from __future__ import annotations

import itertools
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = ((4, 32, 4096, 64), (2, 16, 8192, 128), (1, 8, 16384, 256))


def series(inputs: list[torch.Tensor], calls: int) -> list[float]:
    """Milliseconds of each of `calls` queued calls."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        F.scaled_dot_product_attention(*inputs, is_causal=True)
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def told(times: list[float]) -> str:
    """Three digits each."""
    return " ".join(f"{value:.3f}" for value in times)


def main() -> None:
    """Measure and print."""
    for shape in SHAPES:
        inputs = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
        series(inputs, 5)
        time.sleep(0.5)
        times, begun = series(inputs, 400), 0.0
        print(f"headdim {shape[-1]}, unbroken: ms since start: ms a call")
        for number, value in enumerate(times):
            if number % 12 == 0:
                print(f"  {begun:6.0f}: {value:.3f}")
            begun += value
        for pause_ms in (1, 3, 6, 12, 25, 50, 100):
            series(inputs, int(150 / times[0]))
            time.sleep(pause_ms / 1e3)
            print(f"  after 150 ms of work and {pause_ms} ms of rest: {told(series(inputs, 8))}")
        for work_ms in (10, 20, 30, 50, 80):
            time.sleep(0.3)
            series(inputs, int(work_ms / times[0]))
            print(f"  rested, then {work_ms} ms of work: {told(series(inputs, 8))}")


if __name__ == "__main__":
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        main()
