"""FlashAttention-2 on 64 x 64 tiles: builds, and agrees with float64, PyTorch and its Triton twin."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import textwrap

import pytest
from cuda_ladder import (
    SUBMISSIONS,
    check_on_gpu,
    compare,
    needs_nvcc,
    plain_kernels,
    stress_cases,
    unexpected_spills,
)

NAME = "cuda_fa2_tile64"
FOLDER = SUBMISSIONS / NAME


@needs_nvcc
@pytest.mark.parametrize("rung", plain_kernels(NAME))
def test_every_rung_compiles(rung):
    assert unexpected_spills(NAME, rung) == {}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_triton_twin_against_float64_on_the_cpu(dtype, causal):
    """Interpreted in a child: TRITON_INTERPRET is read when triton is imported."""
    program = f"""
        import sys, torch
        sys.path.insert(0, {str(FOLDER)!r})
        from crosscheck import triton_attention
        for seqlen in (1, 64, 130):
            q, k, v = (torch.randn(1, 2, seqlen, 64, dtype=torch.{dtype}) for _ in range(3))
            expected = torch.nn.functional.scaled_dot_product_attention(
                q.double(), k.double(), v.double(), is_causal={causal})
            out = triton_attention(q, k, v, {causal}).double()
            error = ((out - expected).norm() / expected.norm()).item()
            assert error < {1e-3 if dtype == "float16" else 1e-5}, (seqlen, error)
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def submission():
    """submission.py, imported: builds the extension or loads what an earlier run built."""
    spec = importlib.util.spec_from_file_location("fa2_submission", FOLDER / "submission.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def crosscheck():
    spec = importlib.util.spec_from_file_location("fa2_crosscheck", FOLDER / "crosscheck.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_against_float64(submission, headdim, causal):
    compare(submission.custom_attention_forward, headdim, causal)


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_against_the_triton_twin(submission, crosscheck, headdim, causal):
    for name, q, k, v, scale in stress_cases(headdim):
        if name in ("negative scale", "zero scale"):
            continue  # the twin masks with -inf before scaling
        ours = submission.custom_attention_forward(q, k, v, causal, scale).float()
        twin = crosscheck.triton_attention(q, k, v, causal, scale).float()
        assert ((ours - twin).norm() / twin.norm()).item() < 1e-3, name


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_float32_against_pytorch(submission, headdim, causal):
    import torch

    for seqlen in (1, 64, 333, 1024):
        q, k, v = (torch.randn(2, 3, seqlen, headdim, device="cuda") for _ in range(3))
        out = submission.custom_attention_forward(q, k, v, causal)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, scale=1 / math.sqrt(headdim)
        )
        assert ((out.double() - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.gpu
def test_what_it_does_not_do_is_said(submission):
    import torch

    q = torch.randn(1, 1, 64, 96, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="headdim must be 64 or 128 or 256, got 96"):
        submission.custom_attention_forward(q, q, q)


@pytest.mark.gpu
@pytest.mark.parametrize("file", plain_kernels(NAME))
@pytest.mark.parametrize("causal", [True, False])
def test_rungs_against_float64(file, causal, tmp_path):
    check_on_gpu(NAME, file, causal, tmp_path)
