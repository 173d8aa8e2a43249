"""The plain definition, compiled by torch.compile in the first call.

---
status: [PASSED]
needs_gpu: true
why: inductor compiles in worker processes and writes its cache
"""

import torch
from right_answer import attention

compiled = torch.compile(attention, dynamic=False)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return compiled(q, k, v, causal, sm_scale)
