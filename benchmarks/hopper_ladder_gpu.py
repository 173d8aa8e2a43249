"""The GPU's side of hopper_ladder.py: loads every entrant through the harness's own NVRTC loader, verifies, times.

Writes one JSON object a line: {at, doing} before each step, {missing, why}, {verdict, …}, {times_ms, …};
with --bursts {burst_check, …}, with --small {small, …} for an output that is wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import hopper_checks_gpu  # noqa: E402
import torch  # noqa: E402
from hopper_checks_gpu import ROW, WHOLE, attention  # noqa: E402

from harness.catalog import steps  # noqa: E402
from harness.worker.cuda.launch import load as load_cuda  # noqa: E402

FOLDER = ROOT / "submissions" / "cuda_hopper"
LIBRARIES = ("sdpa_cudnn", "flash_attn_3", "flash_attn_4")
SHAPES = {64: (4, 32, 4096), 128: (2, 16, 8192), 256: (1, 8, 16384)}
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


def bursts(count: int, names: str) -> None:
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
            for known in hopper_checks_gpu.bursts(function, library, (*shape, headdim), count):
                tell(at=name, doing=f"headdim {headdim}, burst {known['bursts']}")
                tell(burst_check=name, headdim=headdim, **known)


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
        bursts(args.bursts, args.only)
        return 0
    functions = load_all(args)
    if args.small:
        return 0 if hopper_checks_gpu.small(functions, tell, SHAPES) else 1
    for headdim in map(int, args.headdims.split(",")):
        batch, heads, seqlen = SHAPES[headdim]
        shape = (batch, heads, seqlen, headdim)
        official = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
        verify(functions, headdim, official)
        tell(headdim=headdim, times_ms=time_all(functions, official, args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
