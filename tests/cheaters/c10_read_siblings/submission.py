"""Reads the source of another submission."""

import os

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


HERE = os.path.dirname(os.path.abspath(__file__))


def read_one():
    folder = os.path.dirname(HERE)
    for name in sorted(os.listdir(folder)):  # raises where the sandbox holds
        path = os.path.join(folder, name, "submission.py")
        if os.path.join(folder, name) != HERE and os.path.exists(path):
            with open(path) as file:
                return bool(file.read())
    return False


if not read_one():
    raise PermissionError("no sibling to read")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
