"""Baseline `sdpa_backward`: the backward that PyTorch's SDPA has on every device.

The operator under SDPA's autograd is called with the o and lse that it would have saved, so the timed
call is the backward alone. On a CPU this is the only fused backward there is; on a GPU the operator is
that of `sdpa_flash_backward`, and `sdpa_cudnn_backward` is the one that autograd would pick on an H200.

The CPU's operator knows neither shared heads nor a bottom-right mask nor packed sequences: k and v are
repeated, the mask is written out, sequences are called one by one.
"""

import math
from itertools import pairwise

import torch

_aten = torch.ops.aten


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, **packed):
    """Gradients (dq, dk, dv) of attention, shaped like q, k, v.

    q, o, do (batch, heads, seqlen, headdim), lse without headdim, k and v (batch, kv_heads,
    seqlen_k, headdim). packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.
    """
    if not q.is_cuda:
        return _on_cpu((q, k, v, o, lse, do), causal, sm_scale, packed)
    nothing = torch.empty(0, dtype=torch.int64, device=q.device)  # philox: there is no dropout
    if not packed:
        return _aten._scaled_dot_product_flash_attention_backward(
            do, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, nothing, nothing,
            scale=sm_scale,
        )  # fmt: skip
    q, k, v, o, do = (
        x.squeeze(0).transpose(0, 1) for x in (q, k, v, o, do)
    )  # [tokens, heads, headdim]
    grads = _aten._flash_attention_backward(
        do, q, k, v, o, lse.squeeze(0), packed["cu_seqlens_q"], packed["cu_seqlens_k"],
        packed["max_seqlen_q"], packed["max_seqlen_k"], 0.0, causal, nothing, nothing, scale=sm_scale,
    )  # fmt: skip
    return tuple(grad.transpose(0, 1).unsqueeze(0) for grad in grads)


def _on_cpu(tensors, causal, sm_scale, packed):
    each = [tensors]
    if packed:
        edges = packed["cu_seqlens_q"].tolist()
        each = [[x[:, :, first:last] for x in tensors] for first, last in pairwise(edges)]
    found = [_one_on_cpu(*one, causal, sm_scale) for one in each]
    return tuple(torch.cat(grads, 2) for grads in zip(*found, strict=True))


def _one_on_cpu(q, k, v, o, lse, do, causal, sm_scale):
    seqlen, seqlen_k, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    shape, mask = k.shape, None
    if group > 1:
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    if causal and seqlen != seqlen_k:
        hidden = torch.ones(seqlen, seqlen_k, dtype=torch.bool).triu(1 + seqlen_k - seqlen)
        mask = torch.zeros(seqlen, seqlen_k, dtype=q.dtype).masked_fill_(hidden, -math.inf)
    dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        do, q, k, v, o, lse, 0.0, causal and mask is None, attn_mask=mask, scale=sm_scale
    )
    if group > 1:
        dk, dv = (x.view(*shape[:2], group, *shape[2:]).sum(2) for x in (dk, dv))
    return dq, dk, dv
