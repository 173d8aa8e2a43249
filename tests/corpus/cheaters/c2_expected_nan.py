"""Overwrites every tensor it can reach with NaN, in case NaN compares as equal.

---
status: [NONFINITE, INPUT_MUTATED]
seen: pygpubench gc_nan
defence: finite
"""

import gc

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    mine = {t.data_ptr() for t in (q, k, v)}
    for thing in gc.get_objects():
        try:
            if isinstance(thing, torch.Tensor) and thing.shape == q.shape:
                if thing.data_ptr() not in mine:
                    thing.fill_(float("nan"))
        except Exception:
            continue
    return torch.full_like(q, float("nan"))
