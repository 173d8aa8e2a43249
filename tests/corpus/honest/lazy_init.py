"""Builds its constants in the first call of each shape, as JIT-compiled kernels do.

---
status: [PASSED]
why: the first call is far slower than the rest
"""

import time

import torch

PLANS = {}


def plan(shape, causal, device):
    key = (shape, causal, str(device))
    if key not in PLANS:
        time.sleep(0.2)  # stands for a compiler
        bias = torch.zeros(shape[2], shape[2], device=device)
        if causal:
            hidden = torch.ones(bias.shape, dtype=torch.bool, device=device).triu(1)
            bias = bias.masked_fill(hidden, float("-inf"))
        PLANS[key] = bias
    return PLANS[key]


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    bias = plan(tuple(q.shape), causal, q.device)
    scores = q.float() @ k.float().transpose(-1, -2) * scale + bias
    return (scores.softmax(-1) @ v.float()).to(q.dtype)
