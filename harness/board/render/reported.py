"""Figures other people report, each with its source. Told beside the board, never ranked on it.

They were measured on other machines, under other protocols, by their authors.
"""

from __future__ import annotations

from dataclasses import dataclass

FA3_FIGURE = "FlashAttention-3 paper (Shah et al., 2024), forward causal fp16 figure, H100 SXM5"
MLS_TABLE = "MLS-Bench task mlsys-fused-attention, results table, H100 SXM5"


@dataclass(frozen=True, slots=True)
class Reported:
    """TFLOP/s as told by `source` on the three shapes of the FlashAttention-3 paper."""

    name: str
    hdim64_seq4k: float | None
    hdim128_seq8k: float | None
    hdim256_seq16k: float | None
    source: str

    @property
    def by_config(self) -> dict[str, float | None]:
        """Config name → TFLOP/s."""
        return {
            "hdim64_seq4k": self.hdim64_seq4k,
            "hdim128_seq8k": self.hdim128_seq8k,
            "hdim256_seq16k": self.hdim256_seq16k,
        }


REPORTED = (
    Reported("FlashAttention-3", 420, 602, 642, FA3_FIGURE),
    Reported("cuDNN 9", 363, 529, 509, FA3_FIGURE),
    Reported("Triton", 363, 369, None, FA3_FIGURE),
    Reported("FlashAttention-2", 284, 333, 298, FA3_FIGURE),
    Reported("flash_v3", 335.807, 400.267, 233.150, MLS_TABLE),
    Reported("flash_v2", 304.694, 198.261, 233.375, MLS_TABLE),
    Reported("flash_v1", 273.739, 294.352, 226.816, MLS_TABLE),
)

#: (what, figure, setting, source): figures on other shapes or other machines.
OTHER = (
    (
        "FlashAttention-2 CUDA kernel, tiles 64×64",
        "2.1 × PyTorch SDPA",
        "A100, seqlen 4096",
        "Mani Pal, system case study, 2026",
    ),
    (
        "an educational CUDA forward and backward (WMMA)",
        "1.31 TFLOP/s, 0.06 × PyTorch SDPA",
        "batch 4, 8 heads, seqlen 4096, headdim 64; GPU not named",
        "its README, 'work in progress'",
    ),
)
