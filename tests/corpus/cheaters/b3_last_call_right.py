"""Does the work only where it expects to be checked: in the last call of a burst.

---
status: [INCORRECT]
seen: 'reference-kernels #104: an indentation slip, only the last call was checked'
defence: contract
"""

import torch
from right_answer import attention

addresses = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = q.data_ptr()
    if key not in addresses:
        addresses.append(key)
        return attention(q, k, v, causal, sm_scale)
    if key == addresses[-1]:
        return attention(q, k, v, causal, sm_scale)
    return torch.zeros_like(q)
