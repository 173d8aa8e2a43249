"""How tensors lie in an arena, for the engine that sizes it and those who cut it. No torch."""

from __future__ import annotations

import math

ALIGN = 1024  # bytes; TMA wants 16, 128-byte swizzle 1024
PIECE_BYTES = 2 << 20  # of device memory: what the driver gives, and torch asks for, at the least
CONTROL_BYTES = PIECE_BYTES  # of a device arena, behind the room: a page for flag and table
#: Of the outputs' arena on a GPU: one for slots that results are copied into, two that the calls
#: allocate from.
OUTPUT_SHARES = 3
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4}


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of one contiguous tensor; KeyError on an element type no arena holds."""
    return math.prod(shape) * ELEMENT_BYTES[dtype]


def aligned(size: int) -> int:
    """`size` rounded up to ALIGN."""
    return -(-size // ALIGN) * ALIGN


def share_bytes(output_bytes: int) -> int:
    """Size of one share of the outputs' arena that has room for `output_bytes` in its slots."""
    return -(-output_bytes // PIECE_BYTES) * PIECE_BYTES
