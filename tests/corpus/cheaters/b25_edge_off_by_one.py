"""Each packed sequence but the first also reads the last key of the one before it.

---
status: [INCORRECT]
seen: a mask off by one where a sequence begins
defence: contract
axes: packed
claims: {packed: true}
"""

from itertools import pairwise

import torch
from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    out = []
    for a, b in pairwise(cu_seqlens_q.tolist()):
        first = max(0, a - 1)
        out.append(attention(q[:, :, a:b], k[:, :, first:b], v[:, :, first:b], causal, sm_scale))
    return torch.cat(out, 2)
