"""What a call of an exported kernel costs the host, beside FlashAttention-3 and SDPA.

    python benchmarks/exported_call.py PACKAGE      (an exported package that can be imported)

Microseconds until a call returns, without waiting for the GPU: calls on tensors of one short head
are queued, the queue is emptied between rounds; the median of 30 rounds, and the least.

`compiled` is what a call costs inside of `torch.compile(fullgraph=True)`: the time of a compiled
function of 17 calls, one on the output of the other, less that of a compiled function of one, a
sixteenth of it. What a compiled function checks at its entry is in neither; it is in `compiled, a
function of one call`. `CUDA graph` is the same with mode="reduce-overhead", where the function is
recorded and a call is a part of a replay: no line of the kernel's host code runs then.

A machine's host counts as much as the code: `zero_` is PyTorch's shortest way to a kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import statistics
import time
from collections.abc import Callable

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # else 16 processes start beside what is measured

import torch
import torch.nn.functional as F

CALLS, ROUNDS = 200, 30
MORE = 16  # calls of a compiled function beside the first
MODES = {"compiled": "default", "CUDA graph": "reduce-overhead"}
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
    attention: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...], mode: str
) -> tuple[list[float], list[float]]:
    """Of one call more inside of a compiled function, and of a compiled function of one call."""

    def chain(length: int) -> Callable[[], torch.Tensor]:
        def many(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            for _ in range(length):
                q = attention(q, k, v)
            return q

        compiled = functools.partial(torch.compile(many, fullgraph=True, mode=mode), *tensors)
        for _ in range(3):  # compiles, warms up, records
            found = compiled().clone()
        torch.testing.assert_close(found, many(*tensors))
        return compiled

    torch._dynamo.reset()
    many, one = host_us(chain(1 + MORE), chain(1), times=16)
    return [(a - b) / MORE for a, b in zip(many, one, strict=True)], one


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
    print("| call | us on the host | least |\n|---|---:|---:|")
    with torch.no_grad():
        for row, call in rows.items():
            tell(row, *host_us(call))
        for way, mode in MODES.items():
            for row, attention in compiled.items():
                more, one = compiled_us(attention, (q, k, v), mode)
                tell(f"{row}, {way}", more)
                tell(f"{row}, {way}, a function of one call", one)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    tell(f"{name}.attention, for a backward", *host_us(lambda: package.attention(*leaves)))


def tell(what: str, us: list[float]) -> None:
    """A row of the table."""
    print(f"| {what} | {statistics.median(us):.2f} | {min(us):.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", help="an exported package that can be imported")
    main(parser.parse_args().package)
