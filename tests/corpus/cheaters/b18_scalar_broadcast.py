"""Returns one element, which broadcasts over any comparison.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.zeros(1, dtype=q.dtype, device=q.device)
