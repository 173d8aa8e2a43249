"""Two checks of the GPU's side of hopper_ladder.py: small shapes for compute-sanitizer, and bursts.

`small` makes its inputs and its float64 reference on the host, so that hardly a kernel but ours runs under the
tool. `bursts` draws new inputs on the official shape, queues CALLS launches, and compares every one of
their outputs on the device: the first with a library's over the whole tensor and with float64 in sampled rows of two
heads, the others bit by bit with the first (a kernel without atomics on its output repeats itself exactly).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

CALLS, ROWS, AT_A_TIME = 6, 64, 25  # launches of a burst, float64 rows, bursts between two looks
WHOLE, ROW = 1e-3, 2e-3  # the gate's relative L2 limits for fp16
SMALL = (
    ("length 300", 3, 300, True),
    ("length 129, full", 3, 129, False),
    ("rising past fp32", 2, 500, True),  # items are done again
    ("more items than SMs", 150, 130, True),
)
PACKED_LENGTHS = (130, 1, 65, 300, 64)  # of the champion, which alone takes them
Function = Callable[..., Any]


def attention(q: Any, k: Any, v: Any, causal: bool, scale: float, rows: Any = None) -> Any:
    """float64 attention of query rows `rows` (all by default)."""
    at = torch.arange(q.shape[2], device=q.device) if rows is None else rows
    logits = q[:, :, at].double() @ k.double().mT * scale
    if causal:
        keys = torch.arange(k.shape[2], device=q.device)
        logits.masked_fill_(keys[None, :] > at[:, None], -math.inf)
    return logits.softmax(-1) @ v.double()


def small(
    functions: dict[str, Function], tell: Callable[..., None], headdims: Any, device: str = "cuda"
) -> bool:
    """A few tiles, both masks, an item that is done again, a queue with more items than SMs; True if right."""
    right = True
    for headdim in headdims:
        generator = torch.Generator().manual_seed(headdim)
        for case, heads, seqlen, causal in SMALL:
            shape, scale = (1, heads, seqlen, headdim), headdim**-0.5
            q, k, v = (torch.randn(shape, generator=generator).half() for _ in range(3))
            if case == "rising past fp32":
                rise = torch.arange(seqlen)[None, None, :, None] / seqlen * 400 * scale
                q, k = torch.full_like(q, 4), rise.half().expand(shape).contiguous()
            expected = attention(q, k, v, causal, scale)
            given = [x.to(device) for x in (q, k, v)]
            for name, function in functions.items():
                tell(at=name, doing=f"headdim {headdim}, {case},")
                out = function(*given, causal, scale).cpu().double()
                error = ((out - expected).norm() / expected.norm()).item()
                right &= error < WHOLE
                if not error < WHOLE:
                    tell(small=name, headdim=headdim, case=case, error=error)
        if "champion" in functions:
            tell(at="champion", doing=f"headdim {headdim}, packed sequences,")
            error = packed_error(functions["champion"], headdim, generator, device)
            right &= error < WHOLE
            if not error < WHOLE:
                tell(small="champion", headdim=headdim, case="packed", error=error)
    return right


def packed_error(function: Function, headdim: int, generator: Any, device: str) -> float:
    """Relative L2 of sequences that share a row of tokens."""
    begins = torch.tensor([0, *PACKED_LENGTHS]).cumsum(0).int()
    shape = (1, 3, int(begins[-1]), headdim)
    q, k, v = (torch.randn(shape, generator=generator).half() for _ in range(3))
    each = (x.split(PACKED_LENGTHS, 2) for x in (q, k, v))
    alone = [attention(*one, True, headdim**-0.5) for one in zip(*each, strict=True)]
    sequences = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), begins.to(device))
    longest = dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), max(PACKED_LENGTHS))
    given = (x.to(device) for x in (q, k, v))
    out = function(*given, True, headdim**-0.5, **sequences, **longest).cpu().double()
    expected = torch.cat(alone, 2)
    return float((out - expected).norm() / expected.norm())


def relative(out: Any, expected: Any) -> tuple[Any, Any]:
    """Relative L2 of the whole and of the worst row, as scalars on the device; infinite if not finite."""
    expected = expected.to(torch.promote_types(expected.dtype, torch.float32))
    difference = (out.to(expected.dtype) - expected).square_().sum(-1)
    size = expected.square().sum(-1)
    whole = (difference.sum(dtype=torch.float64) / size.sum(dtype=torch.float64)).sqrt()
    row = (difference / size.clamp_min(1e-12)).max().sqrt().double()
    return tuple(x.nan_to_num(nan=math.inf) for x in (whole, row))


def burst(
    function: Function, library: Function, shape: Any, number: int, device: str = "cuda"
) -> Any:
    """[outputs that are wrong, whole and row to the library, row to float64] on the device; no wait."""
    generator = torch.Generator(device).manual_seed(number)
    q, k, v = (
        torch.randn(shape, device=device, dtype=torch.float16, generator=generator)
        for _ in range(3)
    )
    outs = [function(q, k, v, True) for _ in range(CALLS)]
    whole, row = relative(outs[0], library(q, k, v, True))
    rows = torch.randint(shape[2], (ROWS,), device=device, generator=generator)
    heads = torch.randint(shape[0] * shape[1], (2,), device=device, generator=generator)
    q, k, v, first = (x.flatten(0, 1)[heads][None] for x in (q, k, v, outs[0]))
    exact = attention(q, k, v, True, shape[3] ** -0.5, rows)
    _, exact_row = relative(first[:, :, rows], exact)
    first_is_wrong = ~((whole < WHOLE) & (row < ROW) & (exact_row < ROW))
    others = [(out.view(torch.int16) != outs[0].view(torch.int16)).any() for out in outs[1:]]
    wrong = first_is_wrong + sum(other | first_is_wrong for other in others)
    return torch.stack([wrong.double(), whole, row, exact_row])


def bursts(
    function: Function, library: Function, shape: Any, count: int, device: str = "cuda"
) -> Iterator[dict[str, Any]]:
    """What is known after every AT_A_TIME bursts; the last one is the verdict."""
    known: dict[str, Any] = {
        "wrong": 0,
        "wrong_bursts": [],
        "whole": 0.0,
        "row": 0.0,
        "float64": 0.0,
    }
    started = time.monotonic()
    for begin in range(0, count, AT_A_TIME):
        numbers = range(begin, min(begin + AT_A_TIME, count))
        found = torch.stack([burst(function, library, shape, n, device) for n in numbers]).tolist()
        for number, (wrong, whole, row, exact_row) in zip(numbers, found, strict=True):
            known["wrong"] += int(wrong)
            if wrong:
                known["wrong_bursts"].append(number)
            for key, value in (("whole", whole), ("row", row), ("float64", exact_row)):
                known[key] = max(known[key], value)
        yield {
            **known,
            "wrong_bursts": known["wrong_bursts"][:5],
            "bursts": numbers.stop,
            "outputs": numbers.stop * CALLS,
            "seconds": time.monotonic() - started,
        }
