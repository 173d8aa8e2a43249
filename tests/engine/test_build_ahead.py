"""Compiling for a GPU that is not here: every configuration, for the target that was named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=1) for b in (16, 32)], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def call(x):
    y = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y
"""
CODE = """
import torch
from harness.worker.cross_compile import without_gpu
without_gpu("9.0/132")
import kernel
assert kernel.call(torch.zeros(64)).shape == (64,)
assert torch.cuda.get_device_capability() == (9, 0)
"""


def test_triton_compiles_every_configuration_for_the_target(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    env.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", CODE], env=env, cwd=tmp_path, check=True)
    texts = [path.read_text(encoding="utf-8") for path in (tmp_path / "cache").rglob("*.ptx")]
    assert len(texts) == 2
    assert all(".target sm_90" in text for text in texts)
