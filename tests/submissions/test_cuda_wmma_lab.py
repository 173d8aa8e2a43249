"""The wmma lab: every rung of its ladder and the kernel, compiled here, checked where a GPU is."""

from __future__ import annotations

import pytest
from cuda_ladder import check_on_gpu, needs_nvcc, plain_kernels, unexpected_spills

NAME = "cuda_wmma_lab"


@needs_nvcc
@pytest.mark.parametrize("rung", plain_kernels(NAME)[1:])
def test_every_rung_compiles(rung):
    assert unexpected_spills(NAME, rung) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("file", plain_kernels(NAME))
@pytest.mark.parametrize("causal", [True, False])
def test_against_float64(file, causal, tmp_path):
    check_on_gpu(NAME, file, causal, tmp_path)
