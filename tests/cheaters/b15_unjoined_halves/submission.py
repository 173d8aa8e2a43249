"""Two threads share the work and nobody waits for the second: right on average, wrong in a race."""

import threading
import time

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def second_half(out, q, k, v, causal, sm_scale):
    time.sleep(0.004)
    half = q.shape[2] // 2
    out[:, :, half:] = attention(q, k, v, causal, sm_scale)[:, :, half:]


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.zeros_like(q)
    half = q.shape[2] // 2
    threading.Thread(target=second_half, args=(out, q, k, v, causal, sm_scale)).start()
    out[:, :, :half] = attention(q, k, v, causal, sm_scale)[:, :, :half]
    return out
