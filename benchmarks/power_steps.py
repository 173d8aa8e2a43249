"""How long a GPU takes to feel its power limit, and how long it remembers: SDPA through cuDNN, official shapes.

Per shape: latency along one unbroken stretch of calls from a rested chip; then eight calls after 150 ms of work
and a pause; then eight calls behind shorter stretches. Says how a burst of a few milliseconds relates to what
`do_bench` reports after a tenth of a second.

With `--rested` instead what cuDNN's own benchmark does (configs/published/tables.yaml): 256 MiB written, one
call, the profiler's time of cuDNN's kernels alone, a pause of ten times that; its shapes, its layout (batch,
seqlen, heads, headdim), lse kept. Beside it the same with one thing changed, and calls without a pause. Its
cuDNN, where torch brings another: pip install nvidia-cudnn-cu13==9.19.1.2.

    python benchmarks/power_steps.py [--rested]
"""

from __future__ import annotations

import argparse
import itertools
import math
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
LONGEST_VARIED = 8192  # beyond, the power limit decides


def cudnn_call(
    seqlen: int, causal: bool, backward: bool, as_there: bool = True, lse_kept: bool = True
) -> Callable[[], object]:
    """A call of cuDNN's forward or backward; `as_there`: in its benchmark's layout."""
    q, k, v, do = (
        torch.randn((1, seqlen, heads, HEADDIM), device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    )
    if not as_there:
        q, k, v, do = (x.contiguous() for x in (q, k, v, do))
    aten = torch.ops.aten

    def forward() -> tuple[torch.Tensor, ...]:
        return aten._scaled_dot_product_cudnn_attention(q, k, v, None, lse_kept, 0.0, causal, False)

    if not backward:
        return forward
    o, lse = forward()[:2]
    unread = torch.empty((), dtype=torch.int64, device="cuda")
    told = (None, None, None, seqlen, seqlen, 0.0, causal)
    of = aten._scaled_dot_product_cudnn_attention_backward
    return lambda: of(do, q, k, v, o, lse, unread, unread, *told)


def by_events(call: Callable[[], object], calls: int) -> float:
    """Milliseconds of a call in the median, each between two events, one behind the other."""
    times = []
    for _ in range(calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in times)


def by_profiler(
    call: Callable[[], object], calls: int, rest_s: float, flush: torch.Tensor | None
) -> float:
    """Milliseconds of a call's cuDNN kernels, each in the median, `rest_s` of pause behind each call.

    flush: written before each call, so that nothing of its inputs lies in L2.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            if flush is not None:
                flush.zero_()
            call()
            torch.cuda.synchronize()
            time.sleep(rest_s)
    took_us: dict[str, list[float]] = {}
    for event in profile.events():
        if "cudnn" in event.name:
            took_us.setdefault(event.name, []).append(event.self_device_time_total)
    return sum(statistics.median(of) * len(of) for of in took_us.values()) / calls / 1e3


def rested() -> None:
    """TFLOP/s of every figure of the table: as there, with one thing changed, and unbroken."""
    print(f"cuDNN {torch.backends.cudnn.version()}, TFLOP/s")
    heads = ("as there", "L2 warm", "layout here", "without lse", "unbroken")
    print(f"  {'':20}", *(f"{head:>12}" for head in heads))
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    for seqlen, causal, backward in itertools.product(SEQLENS, (True, False), (False, True)):
        told = seqlen, causal, backward
        there, here = cudnn_call(*told), cudnn_call(*told, as_there=False)
        by_events(there, 2)
        once_s = by_events(here, 3) / 1e3
        calls, rest_s = 10 if once_s < 0.01 else 3, RESTS * once_s
        found = [by_profiler(there, calls, rest_s, flush)]
        if seqlen <= LONGEST_VARIED:
            found += [
                by_profiler(there, calls, rest_s, None),
                by_profiler(here, calls, rest_s, flush),
            ]
            if not backward:
                bare = cudnn_call(*told, lse_kept=False)
                by_events(bare, 2)
                found += [by_profiler(bare, calls, rest_s, flush)]
        found += [math.nan] * (len(heads) - 1 - len(found)) + [by_events(here, 2 * calls)]
        pairs = seqlen * (seqlen + 1) / 2 if causal else seqlen**2
        flops = 4 * HEADS * HEADDIM * pairs * (2.5 if backward else 1)
        name = f"{seqlen // 1024}k {'causal' if causal else 'full'}{' backward' * backward}"
        print(f"  {name:20}", *(f"{flops / ms / 1e9:12.1f}" for ms in found), flush=True)
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
