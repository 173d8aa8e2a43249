"""The GPU's side of hopper_ladder.py: loads every entrant through the harness's own NVRTC loader, verifies, times.

Writes one JSON object a line: {at, doing} before each step, {missing, why}, {verdict, …}, {times_ms, …};
with --bursts {burst_check, …}, with --small {small, …} for an output that is wrong.

--small, for compute-sanitizer, makes its inputs and its float64 reference on the host, so that hardly a kernel but
ours runs under the tool. --bursts draws new inputs on the official shape, queues LAUNCHES launches, and compares every
one of their outputs on the device: the first with a library's over the whole tensor and with float64 in sampled rows
of two heads, the others bit by bit with the first (a kernel without atomics on its output repeats itself exactly).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from harness.catalog import steps  # noqa: E402
from harness.worker.cuda.launch import load as load_cuda  # noqa: E402

FOLDER = ROOT / "submissions" / "cuda_hopper"
LIBRARIES = ("sdpa_cudnn", "flash_attn_3", "flash_attn_4")
SHAPES = {64: (4, 32, 4096), 128: (2, 16, 8192), 256: (1, 8, 16384)}
WHOLE, ROW = 1e-3, 2e-3  # the gate's relative L2 limits for fp16
CALLS, WARM_ROUNDS, SAMPLED_ROWS = 3, 2, 200
LENGTHS = (1, 65, 127, 129, 300, 1000)
KINDS = (
    "logits x8",
    "needle",
    "offset",
    "rising past fp32",
    "odd scale",
    "negative scale",
    "zero scale",
)
SMALL = (
    ("length 300", 3, 300, True),
    ("length 129, full", 3, 129, False),
    ("rising past fp32", 2, 500, True),  # items are done again
    ("more items than SMs", 150, 130, True),
)
PACKED_LENGTHS = (130, 1, 65, 300, 64)  # of the champion, which alone takes them
LAUNCHES, BURST_ROWS, AT_A_TIME = 6, 64, 25  # of a burst, float64 rows, bursts between two looks
Function = Callable[..., Any]
Case = tuple[str, Any, Any, Any, bool, float]


def tell(**message: Any) -> None:
    """One line to the parent."""
    print(json.dumps(message), flush=True)


# ------------------------------------------------------------------------------------ entrants


def ours() -> dict[str, Callable[[], Function]]:
    """Name → loader of the rungs and of the champion, which is the last kept rung; a loader compiles."""
    cache = Path(os.environ["ATTNBOARD_CACHE"])
    found: dict[str, Callable[[], Function]] = {}
    for path in steps.rungs_of(FOLDER / "steps"):
        launch = steps.manifest_of(path).launch or {}
        found[path.stem] = partial(load_cuda, path.parent, path.name, launch, cache)
    found["champion"] = partial(adapter, FOLDER)
    return found


def adapter(folder: Path) -> Function:
    """custom_attention_forward of a submission.py."""
    name = f"ladder_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, folder / "submission.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    function: Function = module.custom_attention_forward
    return function


def load_all(args: argparse.Namespace) -> dict[str, Function]:
    """Everything that loads, compiled side by side; what does not is told and left out."""
    loaders = {
        name: loader
        for name, loader in ours().items()
        if any(part in name for part in args.only.split(","))
    }
    if not args.small:
        loaders |= {name: partial(adapter, ROOT / "baselines" / name) for name in LIBRARIES}
    skipped = set(args.skip.split(","))
    torch.zeros(1, device="cuda")
    found = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = {n: pool.submit(load) for n, load in loaders.items() if n not in skipped}
        for name, future in futures.items():
            tell(at="", doing=f"loading {name}")
            try:
                found[name] = future.result()
            except Exception as cause:
                tell(
                    missing=name, why=f"{type(cause).__name__}: {str(cause).splitlines()[0][:160]}"
                )
    return found


# ---------------------------------------------------------------------------------- correctness


def cases(headdim: int) -> Iterator[Case]:
    """(name, q, k, v, causal, scale): lengths off the tile under both masks, then stress inputs."""
    generator = torch.Generator("cuda").manual_seed(headdim)

    def draw(heads: int, seqlen: int) -> tuple[Any, Any, Any]:
        shape = (1, heads, seqlen, headdim)
        q, k, v = (torch.randn(shape, device="cuda", generator=generator) for _ in range(3))
        return q.half(), k.half(), v.half()

    usual = headdim**-0.5
    for seqlen in LENGTHS:
        for causal in (True, False):
            yield f"length {seqlen}{'' if causal else ', full'}", *draw(3, seqlen), causal, usual
    yield "many heads", *draw(160, 640), True, usual
    for kind in KINDS:
        (q, k, v), scale = draw(2, 700), usual
        if kind == "logits x8":
            q = q * 8
        elif kind == "needle":
            k[:, :, 7] = q[:, :, -1] * 4
        elif kind == "offset":
            v = v + 10
        elif kind == "rising past fp32":
            at = torch.arange(700, device="cuda")[None, None, :, None] / 700
            q, k = torch.full_like(q, 4), (at * 400 * usual + 0 * k).half()
        elif kind.endswith("scale"):
            scale = {"odd": 0.777, "negative": -0.3, "zero": 0.0}[kind.split()[0]]
        yield kind, q, k, v, True, scale


def attention(q: Any, k: Any, v: Any, causal: bool, scale: float, rows: Any = None) -> Any:
    """float64 attention of query rows `rows` (all by default)."""
    at = torch.arange(q.shape[2], device=q.device) if rows is None else rows
    logits = q[:, :, at].double() @ k.double().mT * scale
    if causal:
        keys = torch.arange(k.shape[2], device=q.device)
        logits.masked_fill_(keys[None, :] > at[:, None], -math.inf)
    return logits.softmax(-1) @ v.double()


def errors(out: Any, expected: Any) -> tuple[float, float]:
    """Relative L2, whole and worst row; infinite where an output is not finite."""
    difference = out.double() - expected
    if not torch.isfinite(difference).all():
        return math.inf, math.inf
    rows = difference.norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
    return (difference.norm() / expected.norm()).item(), rows.max().item()


def called(function: Function, q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    """One call whose output memory most likely held NaN before."""
    torch.full_like(q, math.nan)  # freed at once: the allocator hands it out next
    out = function(q, k, v, causal, scale)
    torch.cuda.synchronize()
    return out


class Verdict:
    """Cases of one entrant at one headdim."""

    def __init__(self) -> None:
        self.ok = self.of = 0
        self.row, self.bad = 0.0, ""

    def take(self, case: str, whole: float, row: float) -> None:
        """One case more."""
        good = whole < WHOLE and row < ROW
        self.of += 1
        self.ok += good
        self.row = max(self.row, row) if math.isfinite(row) else self.row
        if not good and not self.bad:
            self.bad = f"{case}: {whole:.1e} whole, {row:.1e} row"


def verify(functions: dict[str, Function], headdim: int, official: Any) -> None:
    """All cases for everybody, then sampled rows of the official shape."""
    verdicts = {name: Verdict() for name in functions}
    for case, q, k, v, causal, scale in cases(headdim):
        expected = attention(q, k, v, causal, scale)
        for name, function in functions.items():
            if name not in LIBRARIES:  # those are here for their times
                tell(at=name, doing=f"headdim {headdim}, {case}")
                out = called(function, q, k, v, causal, scale)
                verdicts[name].take(case, *errors(out, expected))
    q, k, v = official
    rows = torch.randperm(q.shape[2], device="cuda")[:SAMPLED_ROWS]
    q_ends, k_ends, v_ends = (tensor.flatten(0, 1)[[0, -1]][None] for tensor in (q, k, v))
    expected = attention(q_ends, k_ends, v_ends, True, headdim**-0.5, rows)
    for name, function in functions.items():
        tell(at=name, doing=f"headdim {headdim}, official shape")
        out = called(function, q, k, v, True, headdim**-0.5).flatten(0, 1)[[0, -1]][None]
        verdicts[name].take("official shape", *errors(out[:, :, rows], expected))
        tell(verdict=name, headdim=headdim, **vars(verdicts[name]))


# --------------------------------------------------------------------------------------- times


def time_all(functions: dict[str, Function], official: Any, rounds: int) -> dict[str, list[float]]:
    """Milliseconds a call, one figure a round: a warm call, then CALLS between two events."""
    event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
    times: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    for number in range(rounds + WARM_ROUNDS):
        random.shuffle(order)
        for name in order:
            tell(at=name, doing=f"timing round {number}")
            function = functions[name]
            start, end = event(), event()
            function(*official, True)
            start.record()
            for _ in range(CALLS):
                function(*official, True)
            end.record()
            torch.cuda.synchronize()
            if number >= WARM_ROUNDS:
                times[name].append(start.elapsed_time(end) / CALLS)
    return times


# ------------------------------------------------------------------------------------ small shapes


def check_small(
    functions: dict[str, Function], headdims: Iterable[int], device: str = "cuda"
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


# ------------------------------------------------------------------------------------------ bursts


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
    outs = [function(q, k, v, True) for _ in range(LAUNCHES)]
    whole, row = relative(outs[0], library(q, k, v, True))
    rows = torch.randint(shape[2], (BURST_ROWS,), device=device, generator=generator)
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
            "outputs": numbers.stop * LAUNCHES,
            "seconds": time.monotonic() - started,
        }


def check_bursts(count: int, names: str) -> None:
    """`count` bursts a headdim of each entrant that is named; the champion if none is."""
    library = adapter(ROOT / "baselines" / "sdpa_cudnn")
    for name, load in ours().items():
        if not any(part in name for part in (names or "champion").split(",")):
            continue
        tell(at="", doing=f"loading {name}")
        function = load()
        for headdim, shape in SHAPES.items():
            tell(at=LIBRARIES[0], doing=f"headdim {headdim}, first call of cuDNN")
            small = torch.randn((1, 1, 256, headdim), device="cuda", dtype=torch.float16)
            library(small, small, small, True)
            tell(at=name, doing=f"headdim {headdim}, compiling")
            function(small, small, small, True)
            for known in bursts(function, library, (*shape, headdim), count):
                tell(at=name, doing=f"headdim {headdim}, burst {known['bursts']}")
                tell(burst_check=name, headdim=headdim, **known)


# --------------------------------------------------------------------------------------- the words


def main() -> int:
    """Load, verify, time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--headdims", default=",".join(map(str, SHAPES)))
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--bursts", type=int, default=0)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    if args.bursts:
        check_bursts(args.bursts, args.only)
        return 0
    functions = load_all(args)
    if args.small:
        return 0 if check_small(functions, SHAPES) else 1
    for headdim in map(int, args.headdims.split(",")):
        batch, heads, seqlen = SHAPES[headdim]
        shape = (batch, heads, seqlen, headdim)
        official = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
        verify(functions, headdim, official)
        tell(headdim=headdim, times_ms=time_all(functions, official, args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
