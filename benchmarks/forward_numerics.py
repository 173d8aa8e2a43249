"""How far from float64 an attention forward is, beside cuDNN and FlashAttention-3 on the same inputs.

    python benchmarks/forward_numerics.py                                  # cuda_hopper, on the official shapes
    python benchmarks/forward_numerics.py --entries 07_late_request,champion,triton_champion --draws 3

For every distribution of the problem's checks: relative L2 error of the whole output and of its worst row, and the
largest difference, each the mean over --draws of inputs. An entry is a rung of cuda_hopper, `champion`
(cuda_hopper itself), or the name of a folder in submissions/ or baselines/. Needs a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from hopper_ladder_gpu import ROOT, SHAPES, adapter, ours

from harness.judge.numerics import Reference, error_of
from harness.problems import attention_forward_tensors as tensors
from harness.schema import Case

KWARGS = {"causal": True, "sm_scale": None}
BESIDE = "sdpa_cudnn,flash_attn_3"


def load(name: str) -> Any:
    """custom_attention_forward of an entry; ends with a message if there is none of that name."""
    rungs = ours()
    if name in rungs:
        return rungs[name]()
    for kind in ("submissions", "baselines"):
        if (ROOT / kind / name / "submission.py").is_file():
            return adapter(ROOT / kind / name)
    sys.exit(f"--entries {name}: no such entry; write one of {', '.join(rungs)} or a folder's name")


def main() -> int:
    """One line a distribution, shape and entry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--entries", default="champion")
    parser.add_argument("--beside", default=BESIDE)
    parser.add_argument("--draws", type=int, default=2)
    args = parser.parse_args()
    os.environ.setdefault("ATTNBOARD_CACHE", str(Path(tempfile.gettempdir(), "attnboard")))
    names = [name for name in f"{args.entries},{args.beside}".split(",") if name]
    functions = {name: load(name) for name in names}
    device = torch.device("cuda")
    print(
        f"{'inputs':13} {'headdim':>7}  {'entry':24} {'whole':>9} {'worst row':>9} {'largest':>9}"
    )
    for kind in tensors.DISTRIBUTIONS:
        for headdim, (batch, heads, seqlen) in SHAPES.items():
            case = Case(name="c", batch=batch, heads=heads, seqlen=seqlen, headdim=headdim)
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
            for draw in range(args.draws):
                generator = torch.Generator(device).manual_seed(draw)
                inputs = tensors.make_inputs(case, kind, generator, device, KWARGS)
                exact = tensors.exact(inputs, KWARGS)[0]
                for name, function in functions.items():
                    seen = error_of(function(*inputs, True, None), Reference(exact, exact))
                    found[name].append((seen.rel_l2, seen.worst_row, seen.max_diff))
            for name, rows in found.items():
                means = (sum(column) / len(rows) for column in zip(*rows, strict=True))
                print(f"{kind:13} {headdim:7}  {name:24} " + " ".join(f"{x:9.3e}" for x in means))
    return 0


if __name__ == "__main__":
    sys.exit(main())
