"""Asks the garbage collector for every tensor and returns the one that looks like the answer.

---
status: [INCORRECT, NONFINITE]
seen: pygpubench gc_copy
defence: separate_process
"""

import gc

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    mine = {t.data_ptr() for t in (q, k, v)}
    for thing in gc.get_objects():
        try:
            if isinstance(thing, torch.Tensor) and thing.shape == q.shape:
                if thing.data_ptr() not in mine and torch.equal(thing[:, :, 0].to(q), v[:, :, 0]):
                    return thing.to(q.dtype).clone()
        except Exception:
            continue
    return torch.zeros_like(q)
