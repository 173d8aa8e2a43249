"""How far from float64 an attention is: the forward on a GPU, the backward as rounding makes it, without one.

    python benchmarks/numerics.py forward              # cuda_hopper, on the official shapes, beside the libraries
    python benchmarks/numerics.py forward --entries 07_late_request,champion,triton_champion --draws 3
    python benchmarks/numerics.py backward             # where the limits of attention_backward come from; some minutes

For every distribution of the problem's checks: relative L2 error of the whole output and of its worst row, and the
largest difference, as harness/judge/numerics.py counts them.

forward: each the mean over --draws of inputs. An entry is a rung of cuda_hopper, `champion` (cuda_hopper itself),
or the name of a folder in submissions/ or baselines/.

backward: the worst over dq, dk, dv, least and most over the shapes, for a simulated fused kernel (float32 sums) that
rounds P and dS to fp16, bf16 or fp8, for bf16 inputs, and for PyTorch's own CPU flash backward.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hopper_ladder_gpu import ROOT, SHAPES, adapter, ours

from harness.judge.numerics import Reference, error_of
from harness.problems import attention_backward_tensors as backward_tensors
from harness.problems import attention_forward_tensors as forward_tensors
from harness.schema import Case, Dtype, Error

KWARGS = {"causal": True, "sm_scale": None}
BESIDE = "sdpa_cudnn,flash_attn_3"
SHORT = ((3, 256, 64), (64, 128, 64), (3, 333, 128), (3, 200, 256), (4, 1000, 64))  # H, S, D


# ----------------------------------------------------------------------------------------- forward


def load(name: str) -> Any:
    """custom_attention_forward of an entry; ends with a message if there is none of that name."""
    rungs = ours()
    if name in rungs:
        return rungs[name]()
    for kind in ("submissions", "baselines"):
        if (ROOT / kind / name / "submission.py").is_file():
            return adapter(ROOT / kind / name)
    sys.exit(f"--entries {name}: no such entry; write one of {', '.join(rungs)} or a folder's name")


def forward(args: argparse.Namespace) -> None:
    """One line a distribution, shape and entry."""
    os.environ.setdefault("ATTNBOARD_CACHE", str(Path(tempfile.gettempdir(), "attnboard")))
    names = [name for name in f"{args.entries},{args.beside}".split(",") if name]
    functions = {name: load(name) for name in names}
    device = torch.device("cuda")
    print(
        f"{'inputs':13} {'headdim':>7}  {'entry':24} {'whole':>9} {'worst row':>9} {'largest':>9}"
    )
    for kind in forward_tensors.DISTRIBUTIONS:
        for headdim, (batch, heads, seqlen) in SHAPES.items():
            case = Case(name="c", batch=batch, heads=heads, seqlen=seqlen, headdim=headdim)
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
            for draw in range(args.draws):
                generator = torch.Generator(device).manual_seed(draw)
                inputs = forward_tensors.make_inputs(case, kind, generator, device, KWARGS)
                exact = forward_tensors.exact(inputs, KWARGS)[0]
                for name, function in functions.items():
                    seen = error_of(function(*inputs, True, None), Reference(exact, exact))
                    found[name].append((seen.rel_l2, seen.worst_row, seen.max_diff))
            for name, rows in found.items():
                means = (sum(column) / len(rows) for column in zip(*rows, strict=True))
                print(f"{kind:13} {headdim:7}  {name:24} " + " ".join(f"{x:9.3e}" for x in means))


# ---------------------------------------------------------------------------------------- backward


Kernel = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]


def fused(inside: torch.dtype) -> Kernel:
    """A kernel that is given o and lse and rounds P and dS to `inside`."""

    def kernel(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        q, k, v, o, lse, do = (x.float() for x in inputs)
        scale = q.shape[-1] ** -0.5
        p = (q @ k.mT * scale - lse[..., None]).exp().tril()
        ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
        p, ds = p.to(inside).float(), ds.to(inside).float()
        grads = (ds @ k * scale, ds.mT @ q * scale, p.mT @ do)
        return tuple(x.to(inputs[0].dtype) for x in grads)

    return kernel


def torch_cpu(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """PyTorch's fused backward for CPUs."""
    q, k, v, o, lse, do = inputs
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return tuple(op(do, q, k, v, o, lse, 0.0, True))


KERNELS: dict[str, tuple[Dtype, Kernel]] = {
    "fp16": (Dtype.FP16, fused(torch.float16)),
    "fp16, PyTorch CPU": (Dtype.FP16, torch_cpu),
    "fp16, bf16 inside": (Dtype.FP16, fused(torch.bfloat16)),
    "fp16, fp8 inside": (Dtype.FP16, fused(torch.float8_e4m3fn)),
    "bf16": (Dtype.BF16, fused(torch.bfloat16)),
    "bf16, PyTorch CPU": (Dtype.BF16, torch_cpu),
}


#: Official shapes: all heads, their first rows only; and the root mean square of dq at that length.
EARLY = ((128, 64, 4096), (32, 128, 8192), (8, 256, 16384))  # heads, headdim, seqlen
EARLY_ROWS, DRAWS = 48, 4


def early() -> None:
    """The worst row among the first ones, where dq is a difference of nearly equal numbers."""
    for heads, headdim, seqlen in EARLY:
        whole = Case(name="c", batch=1, heads=1, seqlen=seqlen, headdim=headdim)
        generator, device = torch.Generator().manual_seed(5), torch.device("cpu")
        inputs = backward_tensors.make_inputs(whole, "normal", generator, device, KWARGS)
        usual = backward_tensors.exact(inputs, KWARGS)[0].square().sum(-1).mean().sqrt()
        for name in ("fp16", "bf16"):
            dtype, kernel = KERNELS[name]
            case = whole.model_copy(
                update={"heads": DRAWS * heads, "seqlen": EARLY_ROWS, "dtype": dtype}
            )
            inputs = backward_tensors.make_inputs(case, "normal", generator, device, KWARGS)
            want, found = backward_tensors.exact(inputs, KWARGS)[0], kernel(inputs)[0]
            error = (found - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(usual)
            per_draw = error.unflatten(1, (DRAWS, heads)).amax((0, 2, 3)).tolist()
            figures = " ".join(f"{value:.1e}" for value in per_draw)
            print(
                f"{name} seqlen {seqlen} headdim {headdim}: early rows of {heads} heads {figures}"
            )


def hard_needle() -> None:
    """One key 8 times the others, which the problem never draws: what honest kernels make of dq there."""
    for name in ("fp16", "fp16, PyTorch CPU"):
        found = []
        for headdim, seed in ((d, seed) for d in (64, 128, 256) for seed in range(1, 6)):
            generator = torch.Generator().manual_seed(seed)
            q, k, v, do = (torch.randn((1, 3, 256, headdim), generator=generator) for _ in range(4))
            k[:, :, 256 // 3] *= 8
            q, k, v, do = (x.half() for x in (q, k, v, do))
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            o, lse, *_ = flash(q, k, v, 0.0, True)
            inputs = (q, k, v, o, lse.float(), do)
            want = backward_tensors.exact(inputs, KWARGS)[0]
            dq = KERNELS[name][1](inputs)[0]
            found.append(error_of(dq, Reference(want, want, scaled=True)))
        whole, row = [x.rel_l2 for x in found], [x.worst_row for x in found]
        print(
            f"{name}, one key times 8: dq whole {min(whole):.1e}..{max(whole):.1e}, "
            f"worst row {min(row):.1e}..{max(row):.1e}"
        )


def backward() -> None:
    """Print least and most over the shapes, a line per kernel and distribution."""
    torch.set_grad_enabled(False)
    early()
    hard_needle()
    print(f"{'kernel':18} {'inputs':13} {'whole':>16} {'worst row':>16} {'largest':>16}")
    for name, (dtype, kernel) in KERNELS.items():
        for kind in backward_tensors.DISTRIBUTIONS:
            rows = []
            for heads, seqlen, headdim in SHORT:
                case = Case(
                    name="c", batch=1, heads=heads, seqlen=seqlen, headdim=headdim, dtype=dtype
                )
                generator = torch.Generator().manual_seed(seqlen)
                device = torch.device("cpu")
                inputs = backward_tensors.make_inputs(case, kind, generator, device, KWARGS)
                pairs = zip(
                    backward_tensors.contract(inputs, KWARGS),
                    backward_tensors.exact(inputs, KWARGS),
                    strict=True,
                )
                references = [Reference(c, e, scaled=True) for c, e in pairs]
                found = Error.worst_of(
                    [error_of(*x) for x in zip(kernel(inputs), references, strict=True)]
                )
                rows.append((found.rel_l2, found.worst_row, found.max_diff))
            spans = (f"{min(column):.1e}..{max(column):.1e}" for column in zip(*rows, strict=True))
            print(f"{name:18} {kind:13} {' '.join(f'{span:>16}' for span in spans)}")


def main() -> int:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    which = parser.add_subparsers(dest="which", required=True)
    on_gpu = which.add_parser("forward", help="entries beside libraries; needs a GPU")
    on_gpu.add_argument("--entries", default="champion")
    on_gpu.add_argument("--beside", default=BESIDE)
    on_gpu.add_argument("--draws", type=int, default=2)
    which.add_parser("backward", help="simulated kernels; no GPU")
    args = parser.parse_args()
    if args.which == "forward":
        forward(args)
    else:
        backward()
    return 0


if __name__ == "__main__":
    sys.exit(main())
