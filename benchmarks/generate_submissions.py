"""A folder of N submissions that differ in their source: what a generator of kernels leaves behind.

python benchmarks/generate_submissions.py --count 1000 --out /tmp/generated
python run.py --submission /tmp/generated --gpus all --resume

--kind torch    SDPA over 1, 2, 4 or 8 groups of heads one after the other: four real speeds, no build
--kind triton   copies of submissions/triton_template: each compiles for itself
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUPS = (1, 2, 4, 8)
TORCH = '''\
"""Attention over {groups} groups of heads, one after the other (generated)."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
GROUPS, VARIANT = {groups}, {number}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """q, k, v: (batch, nheads, seqlen, headdim) → the same shape."""
    parts = zip(*(t.chunk(min(GROUPS, t.shape[1]), dim=1) for t in (q, k, v)))
    with sdpa_kernel(BACKENDS):  # not cuDNN: it would build a plan for every shape of every unit
        outs = [F.scaled_dot_product_attention(*p, is_causal=causal, scale=sm_scale) for p in parts]
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
'''
MANIFEST = """\
name: {name}
author: generator
description: {description}
language: pytorch
"""


def main() -> int:
    """Write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--kind", choices=("torch", "triton"), default="torch")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    generate(args.out, args.count, args.kind)
    print(f"{args.count} submissions in {args.out}")
    return 0


def generate(out: Path, count: int, kind: str = "torch") -> list[Path]:
    """`count` folders below `out`."""
    out.mkdir(parents=True, exist_ok=True)
    folders = [out / f"g{number:05d}" for number in range(count)]
    for number, folder in enumerate(folders):
        if kind == "triton":
            copy_template(folder, number)
        else:
            folder.mkdir(exist_ok=True)
            groups = GROUPS[number % len(GROUPS)]
            source = TORCH.format(groups=groups, number=number)
            (folder / "submission.py").write_text(source, encoding="utf-8")
            told = MANIFEST.format(name=folder.name, description=f"{groups} groups of heads")
            (folder / "manifest.yaml").write_text(told, encoding="utf-8")
    return folders


def copy_template(folder: Path, number: int) -> None:
    """The template with a line that makes it another one."""
    skipped = shutil.ignore_patterns("steps", "*.md", "__pycache__")
    template = ROOT / "submissions" / "triton_template"
    shutil.copytree(template, folder, ignore=skipped, dirs_exist_ok=True)
    manifest = folder / "manifest.yaml"
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(text.replace("name: triton_template", f"name: {folder.name}"), "utf-8")
    with (folder / "submission.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\nVARIANT = {number}\n")


if __name__ == "__main__":
    sys.exit(main())
