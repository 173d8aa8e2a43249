"""Two threads share the work and nobody waits for the second: right on average, wrong in a race.

---
status: [INCORRECT]
seen: Wafer field guide (determinism check); a missing barrier
defence: contract
"""

import threading
import time

import torch
from right_answer import attention


def second_half(out, q, k, v, causal, sm_scale):
    time.sleep(0.004)
    half = q.shape[2] // 2
    out[:, :, half:] = attention(q, k, v, causal, sm_scale)[:, :, half:]


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.zeros_like(q)
    half = q.shape[2] // 2
    threading.Thread(target=second_half, args=(out, q, k, v, causal, sm_scale)).start()
    out[:, :, :half] = attention(q, k, v, causal, sm_scale)[:, :, :half]
    return out
