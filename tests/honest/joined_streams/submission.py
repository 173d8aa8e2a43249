"""Runs two halves of the heads on two streams and joins both."""

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


STREAMS = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not STREAMS:
        STREAMS.extend(torch.cuda.Stream() for _ in range(2))
    here = torch.cuda.current_stream()
    out = torch.empty_like(q)
    half = max(1, q.shape[1] // 2)
    for stream, part in zip(STREAMS, (slice(0, half), slice(half, None)), strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            if q[:, part].numel():
                out[:, part] = attention(q[:, part], k[:, part], v[:, part], causal, sm_scale)
        here.wait_stream(stream)
    out.record_stream(here)
    return out
