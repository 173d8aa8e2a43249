"""Runs the forward again under autograd and differentiates it.

---
status: [PASSED]
why: 'gradients are switched on inside the call and o and lse are ignored: slow, not wrong'
problem: attention_backward
"""

import torch
import torch.nn.functional as F


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal, scale=sm_scale)
        return torch.autograd.grad(out, leaves, do)
