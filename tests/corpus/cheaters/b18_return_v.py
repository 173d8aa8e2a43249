"""Returns v itself: no work, right in the first row.

---
status: [BAD_OUTPUT, INCORRECT]
seen: 'fake geometry: a view of an input'
defence: contract
"""

from right_answer import look_busy


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    return v
