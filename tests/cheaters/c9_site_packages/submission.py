"""Plants a .pth file in site-packages, which every later Python would run."""

import os
import site

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


def plant():
    for folder in dict.fromkeys(
        [*site.getsitepackages(), os.path.dirname(os.path.dirname(torch.__file__))]
    ):
        path = os.path.join(folder, "zz_planted.pth")
        try:
            with open(path, "w") as file:
                file.write("# planted")
            os.unlink(path)
            return True
        except OSError:
            continue
    return False


if not plant():
    raise PermissionError("nothing could be written")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
