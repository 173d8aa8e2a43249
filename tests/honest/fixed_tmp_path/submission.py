"""Keeps its tables at a fixed path below /tmp."""

import pathlib

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


FOLDER = pathlib.Path("/tmp/my_kernel_tables")
FOLDER.mkdir(exist_ok=True)
torch.save(torch.arange(4), FOLDER / "table.pt")
TABLE = torch.load(FOLDER / "table.pt")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
