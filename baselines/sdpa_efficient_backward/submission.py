"""Baseline `sdpa_efficient_backward`: the backward of PyTorch's memory-efficient attention.

The operator that SDPA's autograd calls is called with the o and lse it would have saved, so that the
timed call is the backward alone and no graph is built. Its kernel reads lse in rows of a multiple of 32;
for other lengths a padded copy is made inside the call (no official shape needs one).

It reads o as its forward leaves it, a (batch, seqlen, heads, headdim) tensor seen transposed; of a contiguous o
it makes wrong dq and dk, or NaN, without a word. The copy into that order is inside the call.
"""

import math

import torch
import torch.nn.functional as F

_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
ROW = 32  # lse entries; the forward of this backend pads to them with infinity


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    """(dq, dk, dv) of q, k, v, o, do (batch, heads, seqlen, headdim) and lse without headdim, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU.
    """
    if not q.is_cuda:
        raise NotImplementedError(
            f"sdpa_efficient_backward needs a GPU, q is on {q.device}; on a CPU run `sdpa_backward`"
        )
    if lse.shape[-1] % ROW:
        lse = F.pad(lse, (0, -lse.shape[-1] % ROW), value=math.inf)
    o = o.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    unread = torch.empty(0, dtype=torch.int64, device=q.device)  # there is no dropout
    dq, dk, dv, _ = _backward(
        do, q, k, v, None, o, lse, unread, unread, 0.0, [True, True, True, False], causal,
        scale=sm_scale,
    )  # fmt: skip
    return dq, dk, dv
