"""Looks at every other key and doubles their weight.

---
status: [INCORRECT]
seen: approximate attention entered as exact
defence: contract
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    rows = torch.arange(q.shape[2], device=q.device)
    skipped = (rows[:, None] - rows[None, :]) % 2 == 1
    if causal:
        skipped = skipped | (rows[None, :] > rows[:, None])
    return (scores.masked_fill(skipped, float("-inf")).softmax(-1) @ v.float()).to(q.dtype)
