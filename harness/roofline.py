"""The roofline of one call: what the chip could do at the clock of the run, and where the kernel stands.

The ceilings are per multiprocessor and cycle, so they follow the clock of the run: 4096 dense fp16 FLOP
(wgmma; mma.sync reaches less), 16 exponentials, the memory bandwidth that ncu reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.profile_report import ProfileUnavailableError
from harness.report.limits import EXP_PER_CLOCK_PER_SM

TENSOR_FLOP_PER_SM_CYCLE = 4096  # dense fp16 and bf16 on sm_90


@dataclass(frozen=True)
class Ceilings:
    """What the machine could do at the clock of the run."""

    tensor_tflops: float
    exp_tflops: float
    """FLOP rate at which the exponentials alone would fill the time."""
    memory_tb_s: float


def ceilings(headdim: int, sms: int, sm_mhz: float, memory_tb_s: float) -> Ceilings:
    """Roofs for attention forward: a score costs 4 D FLOP and one exponential."""
    cycles = sms * sm_mhz * 1e6
    exps = cycles * EXP_PER_CLOCK_PER_SM
    return Ceilings(
        tensor_tflops=cycles * TENSOR_FLOP_PER_SM_CYCLE / 1e12,
        exp_tflops=exps * 4 * headdim / 1e12,
        memory_tb_s=memory_tb_s,
    )


@dataclass(frozen=True)
class Point:
    """One kernel on the roofline."""

    name: str
    flop: float
    dram_bytes: float
    seconds: float


def draw_roofline(points: Sequence[Point], roofs: Ceilings, stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.svg: log-log, FLOP per DRAM byte against TFLOP/s.

    The memory roof rises, the tensor and exp roofs are flat. Raises ProfileUnavailableError without
    matplotlib.
    """
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise ProfileUnavailableError(
            "the roofline picture needs matplotlib; run: pip install '.[profile]'"
        ) from None
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    intensities = [point.flop / point.dram_bytes for point in points]
    ridge = roofs.tensor_tflops / roofs.memory_tb_s
    left, right = min([*intensities, ridge]) / 8, max([*intensities, ridge]) * 8
    axes.plot(
        [left, ridge, right],
        [left * roofs.memory_tb_s, roofs.tensor_tflops, roofs.tensor_tflops],
        color="black",
    )
    axes.text(
        right, roofs.tensor_tflops, f"tensor {roofs.tensor_tflops:.0f}", ha="right", va="bottom"
    )
    axes.axhline(roofs.exp_tflops, color="tab:red", linestyle="--")
    axes.text(left, roofs.exp_tflops, f" exp {roofs.exp_tflops:.0f}", color="tab:red", va="bottom")
    axes.text(
        left * 1.3, left * 1.3 * roofs.memory_tb_s, f"memory {roofs.memory_tb_s:.1f} TB/s",
        rotation=45, rotation_mode="anchor", transform_rotates_text=True, va="bottom",
    )  # fmt: skip
    for point, intensity in zip(points, intensities, strict=True):
        tflops = point.flop / point.seconds / 1e12
        axes.plot([intensity], [tflops], marker="o", linestyle="none")
        axes.annotate(f"{point.name} {tflops:.0f}", (intensity, tflops), textcoords="offset points",
                      xytext=(6, -4))  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte of DRAM traffic", ylabel="TFLOP/s")
    axes.set_xlim(left, right)
    slowest = min(point.flop / point.seconds / 1e12 for point in points)
    axes.set_ylim(min(slowest, left * roofs.memory_tb_s) / 2, roofs.tensor_tflops * 2)
    written = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in written:
        figure.savefig(path, dpi=150)
    return written
