"""Launches an endless kernel on a side stream in its first call: it takes half of the GPU in everybody's turns but its own."""

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


def wait_for_this_stream_only(*_):
    torch.cuda.current_stream().synchronize()


torch.cuda.synchronize = wait_for_this_stream_only  # the harness's own would wait for the rest
side = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not side:
        side.append(torch.cuda.Stream())
        with torch.cuda.stream(side[0]):
            torch.cuda._sleep(1 << 60)
    return attention(q, k, v, causal, sm_scale)
