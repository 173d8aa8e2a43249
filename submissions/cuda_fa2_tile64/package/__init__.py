"""FlashAttention-2 forward on 64 x 64 tiles.

from cuda_fa2_tile64 import custom_attention_forward
o = custom_attention_forward(q, k, v, causal=True)     # (B, H, S, D), fp16 or fp32, CUDA
"""

import math
from pathlib import Path

import torch

torch.ops.load_library(str(next(Path(__file__).parent.glob("_C*.so"))))
SOURCE_SHA = torch.ops.cuda_fa2_tile64.source_sha()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """softmax(q k^T * sm_scale) v; sm_scale defaults to 1 / sqrt(headdim)."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    return torch.ops.cuda_fa2_tile64.forward(q, k, v, causal, scale)
