"""Reads whole tiles of 16 keys only: of an odd length the last keys are lost.

---
status: [INCORRECT]
seen: tiles without a bounds check
defence: contract
axes: chunk
claims: {seqlens: any}
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    ahead = k.shape[2] - q.shape[2]
    keys = max(16, k.shape[2] // 16 * 16)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k[:, :, :keys].float().mT * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(hidden.triu(1 + ahead), float("-inf"))
    return (scores.softmax(-1) @ v[:, :, :keys].float()).to(q.dtype)
