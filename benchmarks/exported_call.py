"""What a call of an exported kernel costs the host, beside FlashAttention-3 and SDPA.

    python benchmarks/exported_call.py PACKAGE      (an exported package that can be imported)

Microseconds until a call returns, without waiting for the GPU: 200 calls on tensors of one short
head are queued, the queue is emptied between rounds; the median of 30 rounds. `in compiled code` is
what one more call costs there: a function of 16 calls less one of 8, an eighth of it. `compiled,
alone` is a function of one call, with what torch.compile checks at every entry.

A machine's host counts as much as the code: `zero_` is PyTorch's shortest way to a kernel.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else 16 processes start beside what is measured

import torch
import torch.nn.functional as F

CALLS, ROUNDS = 200, 30
SHAPE = (1, 1, 64, 128)  # batch, heads, seqlen, headdim


def host_us(*calls: Callable[[], object], times: int = CALLS) -> list[list[float]]:
    """Of one call, in each round, for each of `calls`, which take turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS + 3):  # three warm
        for call, each in zip(calls, found, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(times):
                call()
            each.append((time.perf_counter() - start) / times * 1e6)
    torch.cuda.synchronize()
    return [each[3:] for each in found]


def compiled_us(
    attention: Callable[..., torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[float, float]:
    """Of one call more inside of a compiled function, and of a compiled function of one call."""

    def chain(length: int) -> Callable[[], torch.Tensor]:
        def many(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            for _ in range(length):
                q = attention(q, k, v)
            return q

        return functools.partial(torch.compile(many, fullgraph=True), q, k, v)

    torch._dynamo.reset()
    long, short, one = host_us(chain(16), chain(8), chain(1), times=16)
    more = [(a - b) / 8 for a, b in zip(long, short, strict=True)]
    return statistics.median(more), statistics.median(one)


def main(name: str) -> None:
    """Print a table."""
    package = importlib.import_module(name)
    q, k, v = (torch.randn(SHAPE, device="cuda", dtype=torch.float16) for _ in range(3))
    scale = SHAPE[-1] ** -0.5
    judged = package.judged.function("forward")
    operators = getattr(torch.ops, name)
    rows = {
        "zero_": q.clone()[0, 0, 0].zero_,
        f"{name}: the judged function": lambda: judged(q, k, v, True, scale),
        f"{name}: the operator": lambda: operators.inference.default(q, k, v, True, scale),
        f"{name}.attention": lambda: package.attention(q, k, v),
        "F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
            q, k, v, is_causal=True
        ),
    }
    compiled = {
        name: package.attention,
        "F.scaled_dot_product_attention": functools.partial(
            F.scaled_dot_product_attention, is_causal=True
        ),
    }
    with contextlib.suppress(ImportError):
        from flash_attn_interface import flash_attn_func

        def third(*tensors: torch.Tensor) -> torch.Tensor:
            o = flash_attn_func(*(t.transpose(1, 2) for t in tensors), causal=True)
            return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

        compiled["flash_attn_3"] = third
        rows["flash_attn_3"] = functools.partial(third, q, k, v)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {SHAPE}, no gradients")
    print("| call | us on the host |\n|---|---:|")
    with torch.no_grad():
        for row, call in rows.items():
            print(f"| {row} | {statistics.median(*host_us(call)):.2f} |")
        for row, attention in compiled.items():
            inside, alone = compiled_us(attention, q, k, v)
            print(
                f"| {row}, in compiled code | {inside:.2f} |\n| {row}, compiled, alone | {alone:.2f} |"
            )
    leaves = [t.requires_grad_() for t in (q, k, v)]
    (trained,) = host_us(lambda: package.attention(*leaves))
    print(f"| {name}.attention, for a backward | {statistics.median(trained):.2f} |")


if __name__ == "__main__":
    main(sys.argv[1])
