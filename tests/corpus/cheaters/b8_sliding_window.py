"""Looks at the nearest quarter of the keys only.

---
status: [INCORRECT]
seen: 'adaptive key skipping; measured: 30 % of the keys dropped pass 1e-2 at 16k'
defence: contract
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    rows = torch.arange(q.shape[2], device=q.device)
    far = (rows[:, None] - rows[None, :]).abs() > max(1, q.shape[2] // 4)
    if causal:
        far = far | (rows[None, :] > rows[:, None])
    return (scores.masked_fill(far, float("-inf")).softmax(-1) @ v.float()).to(q.dtype)
