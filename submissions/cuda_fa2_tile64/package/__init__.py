"""FlashAttention-2 forward on 64 x 64 tiles.

from cuda_fa2_tile64 import custom_attention_forward
o = custom_attention_forward(q, k, v, causal=True)     # (B, H, S, D), fp16 or fp32, CUDA
"""

import glob
import math
import os

import torch

torch.ops.load_library(glob.glob(os.path.join(os.path.dirname(__file__), "_C*.so"))[0])
SOURCE_SHA = torch.ops.cuda_fa2_tile64.source_sha()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """softmax(q k^T * sm_scale) v; sm_scale defaults to 1 / sqrt(headdim)."""
    scale = 1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    return torch.ops.cuda_fa2_tile64.forward(q, k, v, causal, scale)
