"""The ladder to cuda_hopper: every rung compiles without spills here and is checked where a Hopper is."""

from __future__ import annotations

import pytest
from cuda_ladder import check_on_gpu, needs_nvcc, plain_kernels, unexpected_spills

NAME = "cuda_hopper"


@needs_nvcc
@pytest.mark.parametrize("rung", plain_kernels(NAME))
def test_every_rung_compiles_without_spills(rung):
    assert unexpected_spills(NAME, rung) == {}


@pytest.mark.gpu
@pytest.mark.parametrize("rung", plain_kernels(NAME))
@pytest.mark.parametrize("causal", [True, False])
def test_against_float64(rung, causal, tmp_path):
    check_on_gpu(NAME, rung, causal, tmp_path)
