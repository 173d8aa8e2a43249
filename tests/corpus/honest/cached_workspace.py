"""Keeps its workspace between calls, keyed by shape, and overwrites it.

---
status: [PASSED]
why: a buffer kept between calls looks like a cache and is none
"""

import torch

WORKSPACE = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    shape = (*q.shape[:3], k.shape[2])
    if shape not in WORKSPACE:
        WORKSPACE[shape] = torch.empty(shape, dtype=torch.float32, device=q.device)
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2), out=WORKSPACE[shape])
    scores.mul_(scale)
    if causal:
        hidden = torch.ones(shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores.masked_fill_(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)
