"""Answers by object identity and `_version`, which a write from outside does not bump.

---
status: [INCORRECT]
seen: 'KernelBench-Hard property probe; kernelbot #501'
defence: fresh_inputs
"""

from right_answer import attention

ANSWERS = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = (q.shape, q.data_ptr(), q._version, k._version, v._version, causal, sm_scale)
    if key not in ANSWERS:
        ANSWERS[key] = attention(q, k, v, causal, sm_scale)
    return ANSWERS[key]
