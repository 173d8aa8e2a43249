"""Returns NaN everywhere: `max(0.0, nan)` and `not nan >= tol` pass a careless gate.

---
status: [NONFINITE]
seen: a comparison written as `not err >= tol`; pygpubench gc_nan (NaN as wildcard)
defence: finite
"""

import torch
from right_answer import look_busy


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    return torch.full_like(q, float("nan"))
