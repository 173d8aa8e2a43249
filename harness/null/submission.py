"""The null kernel: returns memory nobody computed. It measures the clocks, never a row."""

from __future__ import annotations

import torch

_held: dict[tuple[int, ...], torch.Tensor] = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Return the same unwritten [B, H, S, D] every time."""
    key = tuple(q.shape)
    if key not in _held:
        _held[key] = torch.empty_like(q)
    return _held[key]
