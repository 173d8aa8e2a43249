"""How long a GPU takes to feel its power limit, and how long it remembers: SDPA through cuDNN, official shapes.

Per shape: latency along one unbroken stretch of calls from a rested chip; then eight calls after 150 ms of work
and a pause; then eight calls behind shorter stretches. Says how a burst of a few milliseconds relates to what
`do_bench` reports after a tenth of a second.

With `--rested` instead what cuDNN's own benchmark does (configs/published/tables.yaml): a pause of ten
times a kernel's time behind each call, the profiler's time of the kernels alone, of its shapes, in its layout
(batch, seqlen, heads, headdim) and in the harness's; beside them calls without a pause, between two events.

    python benchmarks/power_steps.py [--rested]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

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


#: Llama-3.1's attention in bf16, as cuDNN measures it.
HEADS, KV_HEADS, HEADDIM, SEQLENS = 64, 8, 128, (2048, 4096, 8192, 16384, 32768)
RESTS = 10  # as long as a call


def cudnn_call(seqlen: int, causal: bool, backward: bool, as_there: bool) -> Callable[[], object]:
    """A call of cuDNN's forward or backward, as the baselines call them; `as_there`: in its layout."""
    q, k, v, do = (
        torch.randn((1, seqlen, heads, HEADDIM), device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    )
    if not as_there:
        q, k, v, do = (x.contiguous() for x in (q, k, v, do))

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    if not backward:
        return forward
    o, unread = forward(), torch.empty((), dtype=torch.int64, device="cuda")
    keys = torch.arange(1, seqlen + 1, device="cuda") if causal else torch.full((seqlen,), seqlen)
    rows = keys.to("cuda", torch.float32).log() + 0.5  # the lse of so many scores of N(0, 1)
    lse = rows.expand(1, HEADS, seqlen).unsqueeze(-1).contiguous()
    of = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    told = (None, None, None, seqlen, seqlen, 0.0, causal)
    return lambda: of(do, q, k, v, o, lse, unread, unread, *told)


def by_events(call: Callable[[], object], calls: int, rest_s: float) -> float:
    """Milliseconds of a call in the median, between two events; `rest_s` of pause behind each."""
    times = []
    for _ in range(calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        if rest_s:
            end.synchronize()
            time.sleep(rest_s)
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in times)


def by_profiler(call: Callable[[], object], calls: int, rest_s: float) -> float:
    """Milliseconds of a call's kernels, each in the median, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        by_events(call, calls, rest_s)
    took_us: dict[str, list[float]] = {}
    for event in profile.events():
        took_us.setdefault(event.name, []).append(event.self_device_time_total)
    return sum(statistics.median(of) * len(of) for of in took_us.values()) / calls / 1e3


def rested() -> None:
    """TFLOP/s of every figure of the table, in three ways."""
    print(
        "cuDNN, TFLOP/s: rested, its layout; rested, here's layout; unbroken, events, here's layout"
    )
    for seqlen, causal, backward in itertools.product(SEQLENS, (True, False), (False, True)):
        there, here = (cudnn_call(seqlen, causal, backward, as_there) for as_there in (True, False))
        once_s = by_events(here, 3, 0.0) / 1e3
        by_events(there, 2, 0.0)
        pairs = seqlen * (seqlen + 1) / 2 if causal else seqlen**2
        flops = 4 * HEADS * HEADDIM * pairs * (2.5 if backward else 1)
        calls = 10 if once_s < 0.01 else 3
        found = (
            by_profiler(there, calls, RESTS * once_s),
            by_profiler(here, calls, RESTS * once_s),
            by_events(here, 2 * calls, 0.0),
        )
        name = f"{seqlen // 1024}k {'causal' if causal else 'full'}{' backward' * backward}"
        print(f"  {name:20}", *(f"{flops / ms / 1e9:8.1f}" for ms in found), flush=True)
        time.sleep(0.2)


def told(times: list[float]) -> str:
    """Three digits each."""
    return " ".join(f"{value:.3f}" for value in times)


def steps() -> None:
    """The three series of each official shape."""
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rested", action="store_true")
    (rested if parser.parse_args().rested else steps)()


if __name__ == "__main__":
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        main()
