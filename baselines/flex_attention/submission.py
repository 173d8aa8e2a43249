"""Baseline `flex_attention`: torch.compile of torch.nn.attention.flex_attention.

One Triton kernel is compiled per shape, mask and scale (`dynamic=False`: the fast form), some
seconds each. The causal block mask is built once per pair of lengths and kept, outside the timed calls.
"""

import functools

import torch

try:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    raise ImportError(
        f"flex_attention needs torch 2.5 or newer, found {torch.__version__} ({error}); "
        "install it: pip install -U torch"
    ) from error

# Past the limit (8) the compiler would fall back to eager flex_attention, which writes the whole
# score matrix: a gate asks for more shapes than that.
torch._dynamo.config.recompile_limit = 256
_compiled = torch.compile(flex_attention, dynamic=False)


@functools.cache
def _block_mask(seqlen, seqlen_k, device):
    """The bottom-right causal mask."""
    ahead = seqlen_k - seqlen

    def causal(batch, head, q_index, kv_index):
        return q_index + ahead >= kv_index

    return create_block_mask(causal, None, None, seqlen, seqlen_k, device=device)


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"flex_attention needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "flex_attention is taken here for compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient` there."
        )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 8.0 or newer.
    """
    _check_gpu(q.device)
    mask = _block_mask(q.shape[2], k.shape[2], q.device) if causal else None
    shared = q.shape[1] != k.shape[1]
    return _compiled(q, k, v, block_mask=mask, scale=sm_scale, enable_gqa=shared)
