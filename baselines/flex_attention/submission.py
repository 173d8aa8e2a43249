"""Baseline `flex_attention`: torch.compile of torch.nn.attention.flex_attention.

One Triton kernel is compiled per shape, mask and scale (`dynamic=False`: the fast form), some
seconds each. The causal block mask is built once per length and kept, outside the timed calls.
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


def _causal(batch, head, q_index, kv_index):
    return q_index >= kv_index


@functools.cache
def _block_mask(seqlen, device):
    return create_block_mask(_causal, None, None, seqlen, seqlen, device=device)


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
    """Attention of q, k, v (batch, heads, seqlen, headdim), fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 8.0 or newer.
    """
    _check_gpu(q.device)
    mask = _block_mask(q.shape[2], q.device) if causal else None
    return _compiled(q, k, v, block_mask=mask, scale=sm_scale)
