"""As an attention implementation of Transformers, which need not be installed."""

from __future__ import annotations

from typing import Any

import torch

from .ops import NAMESPACE, attention


def register_transformers(name: str = NAMESPACE) -> None:
    """Make `attn_implementation=name` mean this kernel; masks are made as for `sdpa`.

    What has a mask (padding, a sliding window), dropout or a position bias is computed by
    Transformers' own `sdpa`, as is a single new token with a cache.

    Raises ImportError where Transformers is missing or too old.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        unusual = any(kwargs.get(key) is not None for key in ("position_bias", "cache", "softcap"))
        if attention_mask is not None or dropout or unusual or query.shape[2] != key.shape[2]:
            done: tuple[torch.Tensor, None] = sdpa_attention_forward(
                *(module, query, key, value, attention_mask),
                dropout=dropout,
                scaling=scaling,
                is_causal=is_causal,
                **kwargs,
            )
            return done
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        o = attention(query, key, value, causal and query.shape[2] > 1, scaling)
        return o.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)
