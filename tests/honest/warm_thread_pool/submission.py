"""Splits the heads over a pool of threads that lives as long as the process, and waits for it."""

from concurrent.futures import ThreadPoolExecutor

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


POOL = ThreadPoolExecutor(max_workers=2)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    def one(head):
        part = slice(head, head + 1)
        return attention(q[:, part], k[:, part], v[:, part], causal, sm_scale)

    return torch.cat(list(POOL.map(one, range(q.shape[1]))), dim=1)
