"""cuda_hopper on the paper's grid beside cuDNN, FlashAttention-3 and -4, in one process.

    python benchmarks/forward_grid.py                                     # 36 cells, about a minute on an H200
    python benchmarks/forward_grid.py --entrant old=../other/submissions/cuda_hopper --headdims 256
    python benchmarks/forward_grid.py --models                            # bf16, grouped heads, longer caches
    python benchmarks/forward_grid.py --errors                            # against float64, beside the libraries
    ncu --clock-control none --profile-from-start off … python benchmarks/forward_grid.py --once

Every entrant is checked first, on the cases of hopper_ladder.py; a wrong one is named and not timed. With --models
every cell is checked, two heads of it. A cell: 16,384 tokens, hidden size 2,048, fp16, randn. In each round every entrant has a turn, in random order: three calls on
rotating inputs, queued behind a pause, 168 MiB written before each, events around each. TFLOP/s: the median over
rounds of the turn's median. It is a workshop's figure, for choosing what to try next; the board's come from run.py.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path
from typing import NamedTuple

import torch
import yaml
from hopper_ladder_gpu import ROOT, ROW, WHOLE, Function, adapter, attention, cases, errors

RIVALS = ("sdpa_cudnn", "flash_attn_3", "flash_attn_4")
SUITES = ("models.yaml", "fa3_bf16.yaml")  # of --models
TOKENS, HIDDEN = 16384, 2048
CALLS, INPUTS, FLUSH_BYTES, PAUSE_CYCLES = 3, 2, 168 << 20, 1_200_000
ERROR_HEADS, ERROR_SEQLENS = 32, (512, 1024, 2048)
BF16_WHOLE = 5e-3  # relative L2, the gate's


class Cell(NamedTuple):
    """One problem; the defaults make the grid's."""

    headdim: int
    seqlen: int
    causal: bool
    batch: int = 0  # as many as TOKENS has room for
    heads: int = 0  # as many as HIDDEN has room for
    kv_heads: int = 0  # as heads
    seqlen_k: int = 0  # as seqlen
    dtype: torch.dtype = torch.float16

    @property
    def shapes(self) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
        """Of q, of k and v: (batch, heads, seqlen, headdim)."""
        batch, heads = self.batch or TOKENS // self.seqlen, self.heads or HIDDEN // self.headdim
        keys = self.seqlen_k or self.seqlen
        return (
            (batch, heads, self.seqlen, self.headdim),
            (batch, self.kv_heads or heads, keys, self.headdim),
        )

    @property
    def flops(self) -> float:
        """Of the two products; half a square where the mask is causal, as the libraries count."""
        (batch, heads, seqlen, headdim), (_, _, keys, _) = self.shapes
        pairs = seqlen * (keys - seqlen / 2) if self.causal else seqlen * keys
        return 4 * batch * heads * headdim * pairs

    def __str__(self) -> str:
        if not self.batch:
            return f"{self.headdim:3d} {self.seqlen:5d} {'causal' if self.causal else 'full  '}"
        (batch, heads, seqlen, _), (_, kv_heads, keys, _) = self.shapes
        mask = "causal" if self.causal else "full  "
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.headdim:3d} {seqlen:5d}/{keys:5d} {heads}/{kv_heads} x {batch} {mask} {dtype}"
        )


def models(dtype: torch.dtype) -> list[Cell]:
    """The cells of suites `models`, but packed ones, and `fa3_bf16`, and shorter prompts of the same models."""
    suites = (yaml.safe_load((ROOT / "configs" / name).read_text()) for name in SUITES)
    found = [
        Cell(
            *(case["headdim"], case["seqlen"], case.get("causal", True), case["batch"]),
            *(case["heads"], case.get("kv_heads", 0), case.get("seqlen_k", 0)),
        )
        for suite in suites
        for case in suite["cases"]
        if "seqlens" not in case
    ]
    for headdim, heads, kv_heads, batched in (
        (128, 32, 8, ((16, 1024), (8, 2048))),  # Llama-3.1 8B
        (64, 64, 8, ((8, 1024), (2, 4096))),  # GPT-OSS
        (256, 16, 8, ((4, 2048),)),  # Gemma 3 12B, without its window
    ):
        found += [Cell(headdim, seqlen, True, batch, heads, kv_heads) for batch, seqlen in batched]
    found += [Cell(128, 512, True, 4, 32, 8, 8192), Cell(64, 2048, True, 1, 64, 8, 16384)]
    found += [Cell(256, 2048, True, 1, 16, 8, 16384)]
    return [cell._replace(dtype=dtype) for cell in found]


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


def is_right_here(name: str, function: Function, cell: Cell) -> bool:
    """Within the gate's bound for bf16 on the first and last head of a cell; says where not, or why it cannot."""
    q, k, v = draw(cell)
    try:
        out = function(q, k, v, cell.causal, None)
    except (NotImplementedError, RuntimeError) as cause:
        print(f"-- {name} has no {cell}: {str(cause).splitlines()[0][:120]}", flush=True)
        return False
    for head, kv_head in ((0, 0), (q.shape[1] - 1, k.shape[1] - 1)):
        rows = slice(-min(512, q.shape[2]), None)  # the last ones see all keys
        logits = q[0, head, rows].double() @ k[0, kv_head].double().T * cell.headdim**-0.5
        if cell.causal:
            future = torch.ones_like(logits, dtype=torch.bool).triu(
                1 + k.shape[2] - logits.shape[0]
            )
            logits.masked_fill_(future, -torch.inf)
        want = logits.softmax(-1) @ v[0, kv_head].double()
        whole = ((out[0, head, rows].double() - want).norm() / want.norm()).item()
        if not whole < BF16_WHOLE:
            print(f"-- {name} is WRONG at {cell}, head {head}: {whole:.1e}", flush=True)
            return False
    return True


def draw(cell: Cell) -> tuple[torch.Tensor, ...]:
    """q, k, v of a cell."""
    q, kv = cell.shapes
    return tuple(torch.randn(shape, device="cuda", dtype=cell.dtype) for shape in (q, kv, kv))


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
    inputs, flush = (
        [draw(cell) for _ in range(INPUTS)],
        torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"),
    )
    times_ms: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name in random.sample(list(functions), len(functions)):
            times_ms[name].append(turn_ms(functions[name], inputs, cell.causal, flush))
    return {name: cell.flops / statistics.median(ms[1:]) / 1e9 for name, ms in times_ms.items()}


def line(cell: Cell, tflops: dict[str, float]) -> str:
    """A row of the table: each entrant with its ratio to the best rival."""
    rivals = {name: x for name, x in tflops.items() if name in RIVALS}
    best = max(rivals, key=rivals.__getitem__, default=None)
    parts = [str(cell)]
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
    parser.add_argument("--models", action="store_true", help="models' cells instead of the grid's")
    parser.add_argument(
        "--dtype", default="bfloat16", help="of the models' cells: bfloat16, float16"
    )
    parser.add_argument("--errors", action="store_true", help="errors instead of times")
    parser.add_argument("--once", action="store_true", help="each cell once, for a profiler")
    options = parser.parse_args()
    headdims = [int(headdim) for headdim in options.headdims.split(",")]
    mine = [f"cuda_hopper={ROOT / 'submissions' / 'cuda_hopper'}", *options.entrant]
    functions = load(mine, [name for name in options.rivals.split(",") if name])
    if options.errors:
        print_errors(functions, headdims)
        return
    for cell in models(getattr(torch, options.dtype)) if options.models else []:
        right = {name: f for name, f in functions.items() if is_right_here(name, f, cell)}
        print(line(cell, time_cell(right, cell, options.rounds)), flush=True)
    for headdim in [] if options.models else headdims:
        right = {
            name: function
            for name, function in functions.items()
            if name in RIVALS or is_right(name, function, headdim)
        }
        for mask in options.masks.split(","):
            for seqlen in map(int, options.seqlens.split(",")):
                cell = Cell(headdim, seqlen, mask == "causal")
                if not options.once:
                    print(line(cell, time_cell(right, cell, options.rounds)), flush=True)
                    continue
                inputs = draw(cell)
                for name, function in right.items():
                    function(*inputs, cell.causal, None)
                    torch.cuda.synchronize()
                    torch.cuda.profiler.start()
                    function(*inputs, cell.causal, None)
                    torch.cuda.synchronize()
                    torch.cuda.profiler.stop()
                    print("once", cell, name, flush=True)


if __name__ == "__main__":
    main()
