"""Regenerates the inputs from small seeds and looks the answer up.

---
status: [INCORRECT]
seen: kernelbot cheat-rng.py; kernelguard REFERENCE_PRECOMPUTE_REPLAY
defence: fresh_inputs
"""

import torch
from right_answer import attention

LEARN = {}


def guess(q):
    for seed in range(4):
        generator = torch.Generator(device=q.device).manual_seed(seed)
        public = torch.randn(q.shape, generator=generator, device=q.device, dtype=q.dtype)
        if torch.equal(public, q):
            return seed
    return None


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    seed = guess(q)
    if seed is None:
        return torch.zeros_like(q)  # not the public inputs: nothing prepared
    key = (seed, q.shape, causal, sm_scale)
    if key not in LEARN:
        LEARN[key] = attention(q, k, v, causal, sm_scale)
    return LEARN[key]
