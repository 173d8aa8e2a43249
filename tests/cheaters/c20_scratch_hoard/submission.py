"""Hoards memory in files of its scratch folder, which lies in memory too."""

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
kept = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while len(kept) < 80:
        kept.append(tempfile.TemporaryFile())
        os.write(kept[-1].fileno(), JUNK)
    return attention(q, k, v, causal, sm_scale)
