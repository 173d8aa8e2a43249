"""cuda_hopper on the paper's grid beside cuDNN, FlashAttention-3 and -4, in one process.

    python benchmarks/forward_grid.py                                     # 36 cells, about a minute on an H200
    python benchmarks/forward_grid.py --entrant old=../other/submissions/cuda_hopper --headdims 256
    python benchmarks/forward_grid.py --errors                            # against float64, beside the libraries
    ncu --clock-control none --profile-from-start off … python benchmarks/forward_grid.py --once

Every entrant is checked first, on the cases of hopper_ladder.py; a wrong one is named and not timed. A cell: 16,384
tokens, hidden size 2,048, fp16, randn. In each round every entrant has a turn, in random order: three calls on
rotating inputs, queued behind a pause, 168 MiB written before each, events around each. TFLOP/s: the median over
rounds of the turn's median. It is a workshop's figure, for choosing what to try next; the board's come from run.py.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import torch
from hopper_checks_gpu import ROW, WHOLE, attention
from hopper_ladder_gpu import ROOT, Function, adapter, cases, errors

RIVALS = ("sdpa_cudnn", "flash_attn_3", "flash_attn_4")
TOKENS, HIDDEN = 16384, 2048
CALLS, INPUTS, FLUSH_BYTES, PAUSE_CYCLES = 3, 2, 168 << 20, 1_200_000
ERROR_HEADS, ERROR_SEQLENS = 32, (512, 1024, 2048)
Cell = tuple[int, int, bool]  # headdim, seqlen, causal


def load(entrants: list[str], rivals: list[str]) -> dict[str, Function]:
    """Name -> function; what cannot be imported is told and left out."""
    folders = dict(text.split("=", 1) for text in entrants)
    folders |= {name: str(ROOT / "baselines" / name) for name in rivals}
    loaded = {name: load_one(name, Path(folder)) for name, folder in folders.items()}
    return {name: function for name, function in loaded.items() if function}


def load_one(name: str, folder: Path) -> Function | None:
    """The function of a submission's folder, or None."""
    try:
        return adapter(folder)
    except ImportError as cause:
        print(f"-- {name} is left out: {str(cause).splitlines()[0][:120]}", flush=True)
        return None


def is_right(name: str, function: Function, headdim: int) -> bool:
    """Within the gate's bounds on every case of the ladder; says where not."""
    for kind, q, k, v, causal, scale in cases(headdim):
        whole, row = errors(function(q, k, v, causal, scale), attention(q, k, v, causal, scale))
        if not (whole < WHOLE and row < ROW):
            print(f"-- {name} is WRONG at headdim {headdim}, {kind}: {whole:.1e}, row {row:.1e}")
            return False
    return True


def draw(cell: Cell) -> tuple[torch.Tensor, ...]:
    """q, k, v of a cell."""
    headdim, seqlen, _ = cell
    shape = (TOKENS // seqlen, HIDDEN // headdim, seqlen, headdim)
    return tuple(torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))


def turn_ms(function: Function, inputs: list, causal: bool, flush: torch.Tensor) -> float:
    """Median of CALLS calls."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
    torch.cuda._sleep(PAUSE_CYCLES)
    for i, (start, end) in enumerate(events):
        flush.fill_(i)
        start.record()
        function(*inputs[i % INPUTS], causal, None)
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def time_cell(functions: dict[str, Function], cell: Cell, rounds: int) -> dict[str, float]:
    """TFLOP/s of every entrant; the first round warms up."""
    _, seqlen, causal = cell
    inputs, flush = (
        [draw(cell) for _ in range(INPUTS)],
        torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"),
    )
    times_ms: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name in random.sample(list(functions), len(functions)):
            times_ms[name].append(turn_ms(functions[name], inputs, causal, flush))
    flops = 4 * TOKENS * seqlen * HIDDEN / (2 if causal else 1)
    return {name: flops / statistics.median(ms[1:]) / 1e9 for name, ms in times_ms.items()}


def line(cell: Cell, tflops: dict[str, float]) -> str:
    """A row of the table: each entrant with its ratio to the best rival."""
    headdim, seqlen, causal = cell
    rivals = {name: x for name, x in tflops.items() if name in RIVALS}
    best = max(rivals, key=rivals.__getitem__, default=None)
    parts = [f"{headdim:3d} {seqlen:5d} {'causal' if causal else 'full  '}"]
    for name, x in tflops.items():
        ratio = f" = {x / rivals[best]:.3f}" if best and name not in rivals else ""
        parts.append(f"{name} {x:.0f}{ratio}")
    return " | ".join([*parts, f"best {best}"])


def print_errors(functions: dict[str, Function], headdims: list[int]) -> None:
    """Whole relative L2, worst row (1e-4 both) and largest difference (1e-3) on normal inputs."""
    for headdim in headdims:
        for seqlen in ERROR_SEQLENS:
            for causal in (True, False):
                generator = torch.Generator("cuda").manual_seed(seqlen + headdim)
                shape, scale = (1, ERROR_HEADS, seqlen, headdim), headdim**-0.5
                q, k, v = (
                    torch.randn(shape, device="cuda", generator=generator).half() for _ in range(3)
                )
                want = attention(q, k, v, causal, scale)
                found = []
                for name, function in functions.items():
                    out = function(q, k, v, causal, scale)
                    whole, row = errors(out, want)
                    far = (out.double() - want).abs().max().item()
                    found.append(f"{name} {whole * 1e4:.2f} {row * 1e4:.2f} {far * 1e3:.2f}")
                mask = "causal" if causal else "full  "
                print(f"errors {headdim:3d} {seqlen:5d} {mask} | {' | '.join(found)}", flush=True)


def main() -> None:
    """Check, then time, count errors, or run once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--entrant", action="append", default=[], help="name=folder of a submission.py"
    )
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--headdims", default="64,128,256")
    parser.add_argument("--seqlens", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--errors", action="store_true", help="errors instead of times")
    parser.add_argument("--once", action="store_true", help="each cell once, for a profiler")
    options = parser.parse_args()
    headdims = [int(headdim) for headdim in options.headdims.split(",")]
    mine = [f"cuda_hopper={ROOT / 'submissions' / 'cuda_hopper'}", *options.entrant]
    functions = load(mine, [name for name in options.rivals.split(",") if name])
    if options.errors:
        print_errors(functions, headdims)
        return
    for headdim in headdims:
        right = {
            name: function
            for name, function in functions.items()
            if name in RIVALS or is_right(name, function, headdim)
        }
        for mask in options.masks.split(","):
            for seqlen in map(int, options.seqlens.split(",")):
                cell = (headdim, seqlen, mask == "causal")
                if not options.once:
                    print(line(cell, time_cell(right, cell, options.rounds)), flush=True)
                    continue
                inputs = draw(cell)
                for name, function in right.items():
                    function(*inputs, cell[2], None)
                    torch.cuda.synchronize()
                    torch.cuda.profiler.start()
                    function(*inputs, cell[2], None)
                    torch.cuda.synchronize()
                    torch.cuda.profiler.stop()
                    print("once", *cell, name, flush=True)


if __name__ == "__main__":
    main()
