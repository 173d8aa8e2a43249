"""Baseline `sdpa_cudnn_backward`: the backward of cuDNN's fused attention as PyTorch calls it.

The operator that SDPA's autograd calls is called with the o and lse it would have saved, so that the
timed call is the backward alone and no graph is built. cuDNN takes lse in natural logarithms, as the
harness gives it, with a last dimension of 1. Without dropout the philox tensors are never read.
"""

import torch

_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
REFUSALS = ("mha_graph", "cudnn_frontend", "cuDNN Frontend", "CUDNN_STATUS_NOT_SUPPORTED")


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    """(dq, dk, dv) of q, k, v, o, do (batch, heads, seqlen, headdim) and lse without headdim, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU, or cuDNN has no plan for this case.
    """
    if not q.is_cuda:
        raise NotImplementedError(
            f"sdpa_cudnn_backward needs a GPU, q is on {q.device}; on a CPU run `sdpa_backward`"
        )
    unread = torch.empty((), dtype=torch.int64, device=q.device)
    seqlen = q.shape[2]
    try:
        return _backward(
            do, q, k, v, o, lse.unsqueeze(-1), unread, unread, None, None, None, seqlen, seqlen, 0.0, causal,
            scale=sm_scale,
        )  # fmt: skip
    except RuntimeError as error:
        if not any(word in str(error) for word in REFUSALS):
            raise
        raise NotImplementedError(
            f"sdpa_cudnn_backward: cuDNN {torch.backends.cudnn.version()} has no backward for "
            f"{tuple(q.shape)} {q.dtype} on {torch.cuda.get_device_name(q.device)}; "
            "run `sdpa_flash_backward`"
        ) from error
