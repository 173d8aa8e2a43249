"""Drops the 20 % of keys with the least weight in each row, which 1e-2 does not see.

---
status: [INCORRECT]
seen: 'measured: dropping 30 % of the keys passes max|diff| < 1e-2 at 16k tokens'
defence: relative_error
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    seen = (weights > 0).sum(-1, keepdim=True)  # keys this row may look at
    rank = weights.argsort(-1).argsort(-1) - (weights.shape[-1] - seen)
    weights = weights.masked_fill(rank < (0.2 * seen).floor(), 0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ v.float()).to(q.dtype)
