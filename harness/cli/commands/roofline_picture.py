"""The roofline of one call as a picture: what the chip could do, and where the kernel stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.measure.roofline import Ceilings
from harness.worker.cuda.counters import ProfileUnavailableError


@dataclass(frozen=True)
class Roofs:
    """What the chip could do at its boost clock."""

    tensor_tflops: float
    exp_tflops: float
    """FLOP rate at which the exponentials alone would fill the time."""
    memory_tb_s: float


def roofs(told: Ceilings, flops: float, io_bytes: float) -> Roofs | None:
    """The same limits as rates, or None where the chip is not known."""
    if not (told.tensor_ms and told.exp_ms and told.memory_ms):
        return None
    tensor, exp = flops / told.tensor_ms / 1e9, flops / told.exp_ms / 1e9
    return Roofs(tensor, exp, memory_tb_s=io_bytes / told.memory_ms / 1e9)


@dataclass(frozen=True)
class Point:
    """One kernel on the roofline."""

    name: str
    flop: float
    dram_bytes: float
    seconds: float


def draw_roofline(points: Sequence[Point], chip: Roofs, stem: Path) -> list[Path]:
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
    ridge = chip.tensor_tflops / chip.memory_tb_s
    left, right = min([*intensities, ridge]) / 8, max([*intensities, ridge]) * 8
    axes.plot(
        [left, ridge, right],
        [left * chip.memory_tb_s, chip.tensor_tflops, chip.tensor_tflops],
        color="black",
    )
    axes.text(
        right, chip.tensor_tflops, f"tensor {chip.tensor_tflops:.0f}", ha="right", va="bottom"
    )
    axes.axhline(chip.exp_tflops, color="tab:red", linestyle="--")
    axes.text(left, chip.exp_tflops, f" exp {chip.exp_tflops:.0f}", color="tab:red", va="bottom")
    axes.text(
        left * 1.3, left * 1.3 * chip.memory_tb_s, f"memory {chip.memory_tb_s:.1f} TB/s",
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
    axes.set_ylim(min(slowest, left * chip.memory_tb_s) / 2, chip.tensor_tflops * 2)
    written = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in written:
        figure.savefig(path, dpi=150)
    return written
