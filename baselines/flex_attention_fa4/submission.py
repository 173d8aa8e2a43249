"""Baseline `flex_attention_fa4`: flex_attention's flash backend, which runs FlashAttention-4's kernels.

One kernel is compiled per shape, mask and scale (`dynamic=False`: the fast form), some seconds
each. The causal block mask is built once per pair of lengths and kept, outside the timed calls.
"""

import functools

import torch

INSTALL = "pip install flash-attn-4==4.0.0b36"

try:
    import flash_attn.cute  # noqa: F401 - what the backend runs
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    raise ImportError(
        f"flex_attention_fa4 needs torch 2.11 or newer, found {torch.__version__}, and flash-attn-4 "
        f"({error}); install it: {INSTALL}"
    ) from error

# Past the limit (8) the compiler would fall back to eager flex_attention, which writes the whole
# score matrix: a gate asks for more shapes than that.
torch._dynamo.config.recompile_limit = 256
_compiled = torch.compile(flex_attention, dynamic=False)


# Keys in a block of the mask: a multiple of those in the backend's tile, which has 80 at headdim 256.
KV_BLOCK = {64: 128, 128: 128, 256: 80}


@functools.cache
def _block_mask(seqlen, seqlen_k, kv_block, device):
    """The bottom-right causal mask."""
    ahead = seqlen_k - seqlen

    def causal(batch, head, q_index, kv_index):
        return q_index + ahead >= kv_index

    sizes = {"device": device, "BLOCK_SIZE": (128, kv_block)}
    return create_block_mask(causal, None, None, seqlen, seqlen_k, **sizes)


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(
            f"flex_attention_fa4 needs a GPU, q is on {device}; run `sdpa` there"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (9, 0):
        raise NotImplementedError(
            "flex_attention_fa4 is taken here for compute capability 9.0 (H100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `flex_attention` there."
        )


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU of compute capability 9.0 or newer.
    """
    _check_gpu(q.device)
    kv_block = KV_BLOCK[q.shape[3]]
    mask = _block_mask(q.shape[2], k.shape[2], kv_block, q.device) if causal else None
    shared = q.shape[1] != k.shape[1]
    return _compiled(
        *(q, k, v),
        block_mask=mask,
        scale=sm_scale,
        enable_gqa=shared,
        kernel_options={"BACKEND": "FLASH"},
    )
