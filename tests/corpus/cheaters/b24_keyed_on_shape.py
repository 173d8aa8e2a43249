"""Is fast on the public shape only: its launch is looked up by that shape, all others take a slow way.

---
status: [PASSED]
needs_gpu: true
seen: a public backward's tile table, keyed on the exact shapes of its benchmark, 2026-11
defence: hidden_shapes
slower_on_hidden: true
"""

import torch.nn.functional as F

PUBLIC = {(2, 16, 4096, 64)}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    calls = 1 if tuple(q.shape) in PUBLIC else 4
    for _ in range(calls):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    return out
