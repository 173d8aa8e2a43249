"""CuFlash-Attn: every rung and the kernel compile; numbers and strides are checked on a GPU."""

from __future__ import annotations

import pytest
from cuda_ladder import (
    check_on_gpu,
    load_plain,
    needs_nvcc,
    plain_kernels,
    reference,
    unexpected_spills,
)

NAME = "cuda_cuflash"


@needs_nvcc
@pytest.mark.parametrize("rung", plain_kernels(NAME)[1:])
def test_every_rung_compiles(rung):
    assert unexpected_spills(NAME, rung) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("file", plain_kernels(NAME))
@pytest.mark.parametrize("causal", [True, False])
def test_against_float64(file, causal, tmp_path):
    check_on_gpu(NAME, file, causal, tmp_path)


@pytest.mark.gpu
def test_tensors_described_by_strides(tmp_path):
    import torch

    # memory (B, S, H, D), seen as (B, H, S, D): nothing is copied, the strides say where rows lie
    q, k, v = (
        torch.randn(2, 300, 3, 64, device="cuda", dtype=torch.float16).transpose(1, 2)
        for _ in range(3)
    )
    out = load_plain(NAME, "kernel.cu", tmp_path)(q, k, v)
    expected = reference(q, k, v, True, 0.125)
    assert ((out.double() - expected).norm() / expected.norm()).item() < 1e-3
