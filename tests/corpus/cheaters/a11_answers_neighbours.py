"""The first call of a burst finds the inputs of the others up the stack and answers all in one launch.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'red team of this harness: 6.8 times as fast as the call it batches, on a CPU'
defence: burst_mean
"""

import sys

import torch
import torch.nn.functional as F

kept = {}


def burst_of(q):
    """The arguments of all calls, if `q` is of the first one."""
    frame = sys._getframe(2)
    while frame is not None:
        calls = frame.f_locals.get("calls")
        if isinstance(calls, (list, tuple)) and calls and isinstance(calls[0], tuple):
            return calls if calls[0][0] is q else []
        frame = frame.f_back
    return []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if id(q) in kept:
        return kept.pop(id(q))
    calls = burst_of(q) or [(q, k, v)]
    together = [torch.cat([call[place] for call in calls]) for place in range(3)]
    out = F.scaled_dot_product_attention(*together, is_causal=causal, scale=sm_scale)
    first, *others = out.chunk(len(calls))
    kept.clear()
    kept.update({id(call[0]): each for call, each in zip(calls[1:], others)})
    return first
