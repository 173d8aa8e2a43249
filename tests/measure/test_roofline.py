"""The roofline: the limits of a call as rates, and a picture in both formats."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.cli.commands.roofline_picture import Point, Roofs, draw_roofline, roofs
from harness.measure.roofline import ceilings
from harness.problems import get_problem
from tests.board.factory import CASES, CPU, H200

PROBLEM = get_problem("attention_forward")


def test_roofs_are_the_chip_s_own_and_follow_the_head_dimension() -> None:
    case = CASES["hdim128_seq8k"]
    flops, io_bytes = PROBLEM.flops(case), PROBLEM.io_bytes(case)
    told = roofs(ceilings(case, H200, 0, PROBLEM), flops, io_bytes)
    assert told is not None
    assert told.tensor_tflops == pytest.approx(989.5)
    assert told.memory_tb_s == pytest.approx(4.8)
    # a score costs 4 headdim FLOP and one exponential: at headdim 64 both units would be as busy
    assert told.exp_tflops == pytest.approx(2 * told.tensor_tflops, rel=1e-3)


def test_an_unknown_chip_has_no_roofs() -> None:
    case = CASES["hdim128_seq8k"]
    assert roofs(ceilings(case, CPU, 0, PROBLEM), PROBLEM.flops(case), 1) is None


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_the_roofline_is_drawn_twice(tmp_path: Path) -> None:
    points = [Point("mine", flop=8.6e9, dram_bytes=12.6e6, seconds=51e-6)]
    png, svg = draw_roofline(points, Roofs(989, 1978, 4.8), tmp_path / "roofline")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
