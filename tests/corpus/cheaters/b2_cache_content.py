"""Fingerprints a few elements; hit: the stored answer, miss: whatever it knows of that shape.

---
status: [INCORRECT]
seen: 'flashinfer-bench starter kit #21; tensara #238'
defence: fresh_inputs
"""

from right_answer import attention

ANSWERS = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    step = max(1, q.numel() // 64)
    kind = (tuple(q.shape), causal, sm_scale)
    key = tuple(q.flatten()[::step].tolist())
    known = ANSWERS.setdefault(kind, {})
    if key in known:
        return known[key]
    if len(known) >= 2:  # everything there is to see has been seen
        return next(iter(known.values()))
    known[key] = attention(q, k, v, causal, sm_scale)
    return known[key]
