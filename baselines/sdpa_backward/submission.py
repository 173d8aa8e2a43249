"""Baseline `sdpa_backward`: the backward that PyTorch's SDPA has on every device.

The operator under SDPA's autograd is called with the o and lse that it would have saved, so the timed
call is the backward alone. On a CPU this is the only fused backward there is; on a GPU the operator is
that of `sdpa_flash_backward`, and `sdpa_cudnn_backward` is the one that autograd would pick on an H200.
"""

import torch

_aten = torch.ops.aten


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    """Gradients (dq, dk, dv) of attention; all (batch, heads, seqlen, headdim), lse without headdim."""
    if not q.is_cuda:
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, o, lse, 0.0, causal, scale=sm_scale
        )
    nothing = torch.empty(0, dtype=torch.int64, device=q.device)  # philox: there is no dropout
    seqlen = q.shape[2]
    return _aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, o, lse, None, None, seqlen, seqlen, 0.0, causal, nothing, nothing,
        scale=sm_scale,
    )  # fmt: skip
