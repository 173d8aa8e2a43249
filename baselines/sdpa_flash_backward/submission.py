"""Baseline `sdpa_flash_backward`: the backward of the FlashAttention-2 that PyTorch compiles in.

The operator that SDPA's autograd calls is called with the o and lse it would have saved, so that the
timed call is the backward alone and no graph is built. Without dropout the two philox tensors are never
read, and an absent `cum_seq` means that all sequences have one length.
"""

import torch

_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None, **packed):
    """(dq, dk, dv), shaped like q, k, v, on a GPU.

    q, o, do (batch, heads, seqlen, headdim), lse without headdim, k and v (batch, kv_heads,
    seqlen_k, headdim). packed: cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.

    Raises:
        NotImplementedError: q is not on a GPU.
    """
    if not q.is_cuda:
        raise NotImplementedError(
            f"sdpa_flash_backward needs a GPU, q is on {q.device}; on a CPU run `sdpa_backward`"
        )
    unread = torch.empty(0, dtype=torch.int64, device=q.device)
    if not packed:
        return _backward(
            do, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, unread, unread,
            scale=sm_scale,
        )  # fmt: skip
    q, k, v, o, do = (
        x.squeeze(0).transpose(0, 1) for x in (q, k, v, o, do)
    )  # [tokens, heads, headdim]
    grads = torch.ops.aten._flash_attention_backward(
        do, q, k, v, o, lse.squeeze(0), packed["cu_seqlens_q"], packed["cu_seqlens_k"],
        packed["max_seqlen_q"], packed["max_seqlen_k"], 0.0, causal, unread, unread, scale=sm_scale,
    )  # fmt: skip
    return tuple(grad.transpose(0, 1).unsqueeze(0) for grad in grads)
