"""dq and dk are right; dv spreads do evenly over the keys a query sees.

---
status: [INCORRECT]
seen: the mean of v as an answer (b7_mean_of_v), one gradient of three
defence: contract
problem: attention_backward
"""

import torch
from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    dq, dk, _ = gradients(q, k, v, do, causal, sm_scale)
    seqlen = q.shape[2]
    seen = (
        torch.arange(1, seqlen + 1, device=q.device)
        if causal
        else torch.full((1,), seqlen, device=q.device)
    )
    even = do.float() / seen[:, None]
    dv = even.flip(2).cumsum(2).flip(2) if causal else even.sum(2, keepdim=True).expand(q.shape)
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype).contiguous()
