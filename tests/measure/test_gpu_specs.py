"""What a GPU could do: its constants and the roofline."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.cli.commands.profile import Roofs, draw_roofline, roofs
from harness.measure import gpu_specs
from harness.measure.roofline import ceilings
from harness.problems import get_problem
from harness.schema import Machine
from tests.board.factory import CASES, CPU, H200

ROOT = Path(__file__).resolve().parents[2]
H100 = H200.model_copy(update={"memory_gib": 80.0})


def test_an_h100_is_an_h200_with_less_memory() -> None:
    assert gpu_specs.peak_tflops(H100) == gpu_specs.peak_tflops(H200) == 989.5
    assert (gpu_specs.bandwidth(H100), gpu_specs.bandwidth(H200)) == (3.35e12, 4.8e12)


@pytest.mark.parametrize("part", gpu_specs.PARTS, ids=str)
def test_a_peak_is_that_of_its_boost_clock(part: gpu_specs.Part) -> None:
    machine = Machine(
        gpu=part.names[0], sms=part.sms, capability=part.capability, memory_gib=part.least_gib
    )
    assert gpu_specs.part_of(machine) == part
    assert gpu_specs.tensor_tflops(machine, part.boost_mhz) == part.peak_tflops
    per_clock = gpu_specs.SMS[part.capability].tensor_flop
    if per_clock and part.sms != 78:  # the H20 has fewer of them
        reckoned = part.sms * per_clock * part.boost_mhz / 1e6
        assert reckoned == pytest.approx(part.peak_tflops, rel=2e-3)


def test_a_part_that_is_not_listed_is_told_by_its_capability() -> None:
    unlisted = H200.model_copy(update={"sms": 100})
    assert gpu_specs.peak_tflops(unlisted) is None
    assert gpu_specs.bandwidth(unlisted) is None
    assert gpu_specs.tensor_tflops(unlisted, 1000) == pytest.approx(409.6)
    assert gpu_specs.tensor_tflops(H200, None) is None
    assert gpu_specs.tensor_tflops(CPU, 1830) is None


@pytest.mark.parametrize(
    ("threads", "registers", "smem_bytes", "blocks", "limited_by"),
    [
        (128, 168, 0, 3, "registers"),
        (384, 168, 200_000, 1, "registers"),
        (128, 64, 0, 8, "registers"),
        (128, 32, 0, 16, "registers"),
        (256, 32, 100_000, 2, "shared memory"),
        (1024, 0, 0, 2, "warps"),
        (32, 0, 0, 32, "block slots"),
    ],
)
def test_occupancy(
    threads: int, registers: int, smem_bytes: int, blocks: int, limited_by: str
) -> None:
    told = gpu_specs.occupancy(gpu_specs.SMS["9.0"], threads, registers, smem_bytes)
    assert (told.blocks, told.limited_by) == (blocks, limited_by)
    assert told.warps == blocks * threads // 32


@given(
    st.sampled_from(sorted(gpu_specs.SMS)),
    st.integers(1, 1024),
    st.integers(0, 255),
    st.integers(0, 232_448),
)
def test_what_fits_never_exceeds_what_is_there(
    capability: str, threads: int, registers: int, smem_bytes: int
) -> None:
    sm = gpu_specs.SMS[capability]
    told = gpu_specs.occupancy(sm, threads, registers, smem_bytes)
    assert 0 <= told.warps <= sm.warps
    assert told.blocks <= sm.blocks
    assert told.warps * 32 * registers <= sm.registers
    assert told.blocks * smem_bytes <= sm.smem_bytes


def test_no_other_module_writes_such_figures() -> None:
    figures = {repr(part.peak_tflops) for part in gpu_specs.PARTS}
    figures |= {repr(sm.smem_bytes) for sm in gpu_specs.SMS.values()} | {repr(gpu_specs.USUAL_MHZ)}
    for path in sorted((ROOT / "harness").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        numbers = {repr(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert path.name == "gpu_specs.py" or not numbers & figures, path


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
    png, svg = draw_roofline(
        "mine", 8.6e9 / 12.6e6, 8.6e9 / 51e6, Roofs(989, 1978, 4.8), tmp_path / "roofline"
    )
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_a_gpu_has_one_name() -> None:
    """One in letters that look alike would be alone on a board."""
    for part in gpu_specs.PARTS:
        facts = {"capability": part.capability, "sms": part.sms, "memory_gib": part.least_gib}
        assert gpu_specs.part_of(Machine(gpu="H200 2", **facts)) in gpu_specs.PARTS
        assert part.names[0] in gpu_specs.misnamed(Machine(gpu="H200 2", **facts)) or "NVL" in str(
            part.names
        )
        for name in part.names:
            machine = Machine(gpu=name, **facts)
            assert gpu_specs.part_of(machine) is part
            assert not gpu_specs.misnamed(machine)
    with pytest.raises(ValidationError, match="String should match pattern"):
        Machine(gpu="NVIDIA H2\u041e\u041e")
    for name in ("X <img src=https://x>", "[a](https://x) @b", "##[group]x", "", "X ", "X  Y"):
        with pytest.raises(ValidationError, match="String should match pattern"):
            Machine(gpu=name)


def test_no_other_chip_bears_a_known_name() -> None:
    """Nobody knows its peak, and its rows would stand beside those of the known one."""
    for part in gpu_specs.PARTS:
        facts = {"gpu": part.names[0], "capability": part.capability, "sms": part.sms}
        for other in ({"sms": part.sms - 1}, {"capability": "9.9"}):
            assert gpu_specs.misnamed(Machine(**{**facts, **other, "memory_gib": 200.0}))
        for name in (part.names[0].replace(" ", "_"), part.names[0].lower()):
            folded = {
                **facts,
                "gpu": name,
                "sms": 7,
            }  # its rows would lie in the known one's folder
            assert gpu_specs.misnamed(Machine(**folded))
    assert not gpu_specs.misnamed(Machine(gpu="Some GPU", capability="9.9", sms=7))
