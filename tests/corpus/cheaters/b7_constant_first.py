"""Computes the first answer of each shape and returns it for ever.

---
status: [INCORRECT]
seen: 'KernelBench PR #82 result_reuse_kernel.py'
defence: fresh_inputs
"""

from right_answer import attention

FIRST = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = (tuple(q.shape), causal, sm_scale)
    if key not in FIRST:
        FIRST[key] = attention(q, k, v, causal, sm_scale)
    return FIRST[key]
