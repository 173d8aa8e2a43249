"""Returns the mean of V over the keys: close to the truth where softmax is flat.

---
status: [INCORRECT]
seen: 'KernelBench #165 (zeros pass 4 of 60 problems); BackendBench'
defence: contract
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not causal:
        return v.float().mean(2, keepdim=True).expand(q.shape).to(q.dtype)
    count = torch.arange(1, v.shape[2] + 1, device=v.device, dtype=torch.float32)[:, None]
    return (v.float().cumsum(2) / count).to(q.dtype)
