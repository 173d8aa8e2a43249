"""Launches 100 ms of spinning behind each burst, when its clock has stopped.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


side = torch.cuda.Stream()
synchronize = torch.cuda.synchronize
called = False


def synchronize_and_spin(*_):
    global called
    synchronize()
    if called:
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
    called = False


torch.cuda.synchronize = synchronize_and_spin


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global called
    called = True
    return attention(q, k, v, causal, sm_scale)
