"""The roofline: ceilings at the clock of the run, and a picture in both formats."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.roofline import Ceilings, Point, ceilings, draw_roofline


def test_ceilings_follow_the_clock_and_the_head_dimension() -> None:
    roofs = ceilings(headdim=128, sms=132, sm_mhz=1830, memory_tb_s=4.8)
    assert roofs.tensor_tflops == pytest.approx(989, rel=1e-3)
    assert roofs.exp_tflops == pytest.approx(2 * roofs.tensor_tflops)  # at 64 the two are equal


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_the_roofline_is_drawn_twice(tmp_path: Path) -> None:
    points = [Point("mine", flop=8.6e9, dram_bytes=12.6e6, seconds=51e-6)]
    png, svg = draw_roofline(points, Ceilings(989, 1978, 4.8), tmp_path / "roofline")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
