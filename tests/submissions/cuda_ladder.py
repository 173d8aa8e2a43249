"""Shared by the tests of the plain .cu submissions: their files, compilers and one oracle."""

from __future__ import annotations

import functools
import math
import shutil
from pathlib import Path

import pytest
import yaml

from harness.catalog.launch_spec import parse_launch
from harness.worker.cuda import resources
from harness.worker.cuda import source as cuda_source
from harness.worker.cuda.instances import instances

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
# Rungs that spill, and are kept because the ladder shows it.
SPILLING_RUNGS = {"01_naive.cu", "01_document.cu", "02_q_tiles_in_grid.cu", "03_swizzle.cu",
                  "04_ldmatrix_swizzle.cu", "04_tensor_cores.cu", "05_wmma_pv.cu"}  # fmt: skip


@functools.cache
def _sections(name: str) -> dict[str, dict]:
    folder = SUBMISSIONS / name
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    sections = {"kernel.cu": manifest["launch"]} if "launch" in manifest else {}
    steps = yaml.safe_load((folder / "steps" / "launch.yaml").read_text())
    sections |= {f"steps/{file}": section for file, section in steps.items()}
    return {file: parse_launch(section, file).model_dump() for file, section in sections.items()}


def plain_kernels(name: str) -> list[str]:
    """kernel.cu (if the submission is a plain .cu), then its rungs."""
    return list(_sections(name))


def spills(name: str, file: str, arch: str) -> dict[str, int]:
    """Spilled bytes of each kernel that spills, as nvcc compiles `file` for `arch`."""
    launch = _sections(name)[file]
    names = sorted({name for name, _, _ in instances(launch)})
    source = SUBMISSIONS / name / file
    text = resources.instantiating_source(source, names)
    log, _, kernels = resources.nvcc(text, arch, source.parent, launch["flags"])
    reports = resources.parse_ptxas(log, kernels)
    assert len(reports) == len(names)
    return {r.name: r.spill_store_bytes for r in reports if r.spill_store_bytes}


def unexpected_spills(name: str, rung: str) -> dict[str, int]:
    """Spills of a rung for sm_90a, unless the ladder says that it spills."""
    found = spills(name, rung, "sm_90a")
    return {} if Path(rung).name in SPILLING_RUNGS else found


def load_plain(name: str, file: str, cache: Path):
    """The callable of `file`, compiled into `cache`."""
    path = SUBMISSIONS / name / file
    return cuda_source.load(path.parent, path.name, _sections(name)[file], cache)


def reference(q, k, v, causal, scale):
    """Attention in float64."""
    import torch

    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        later = torch.ones(scores.shape[-2:], device=q.device, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ v


def stress_cases(headdim: int):
    """(name, q, k, v, scale) on the GPU: lengths off the tile, hard logits, odd scales."""
    import torch

    generator = torch.Generator("cuda").manual_seed(headdim)
    for name, seqlen, scale in (
        ("one row", 1, None), ("one tile", 64, None), ("off the tile", 333, None),
        ("logits x8", 333, None), ("needle", 200, None), ("offset", 200, None),
        ("later keys small", 333, None), ("tiny scale", 130, 1e-4), ("odd scale", 130, 0.37),
        ("negative scale", 130, -0.2), ("zero scale", 130, 0.0),
    ):  # fmt: skip
        q, k, v = (
            torch.randn(2, 2, seqlen, headdim, device="cuda", generator=generator) for _ in range(3)
        )
        if name == "logits x8":
            q *= 8
        elif name == "needle":
            k[:, :, seqlen // 3] *= 20
        elif name == "offset":
            v += 10
        elif name == "later keys small":  # walking from the diagonal backwards, the maximum grows
            q, k[:, :, : seqlen // 2] = q.abs(), k[:, :, : seqlen // 2].abs() * 6
        yield name, q.half(), k.half(), v.half(), scale


def compare(function, headdim: int, causal: bool) -> None:
    """Asserts the gate's bounds for every stress case: 0.1 % of the whole, 0.2 % of any row."""
    for name, q, k, v, scale in stress_cases(headdim):
        out = function(q, k, v, causal, scale).double()
        used = 1 / math.sqrt(headdim) if scale is None else scale
        expected = reference(q, k, v, causal, used)
        difference = out - expected
        whole = (difference.norm() / expected.norm()).item()
        row = (difference.norm(dim=-1) / expected.norm(dim=-1)).max().item()
        assert whole < 1e-3, (name, whole)
        assert row < 2e-3, (name, row)


def check_on_gpu(name: str, file: str, causal: bool, cache: Path) -> None:
    """`compare` for every head dimension the file serves."""
    function = load_plain(name, file, cache)
    headdims = sorted({d for k in _sections(name)[file]["kernels"] for d in k["headdims"]})
    for headdim in headdims:
        compare(function, headdim, causal)
