"""How tensors lie in an arena, for the engine that sizes it and the processes that cut it. No torch."""

from __future__ import annotations

import math

ALIGN = 1024  # bytes; TMA wants 16, 128-byte swizzle 1024
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one contiguous tensor; KeyError on an element type no arena holds."""
    return math.prod(shape) * ELEMENT_BYTES[dtype]


def aligned(size: int) -> int:
    """`size` rounded up to ALIGN."""
    return -(-size // ALIGN) * ALIGN
