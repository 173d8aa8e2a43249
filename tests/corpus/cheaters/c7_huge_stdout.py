"""Floods stdout and stderr until a pipe nobody drains stops the run, or a disk is full.

---
status: [INCORRECT, CRASHED, TIMED_OUT, OVER_QUOTA]
seen: an undrained pipe deadlocks; kernelbot _limit_length
defence: log_cap
"""

import os

import torch

JUNK = b"x" * (1 << 20)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for fd in (1, 2):
        for _ in range(192):
            os.write(fd, JUNK)
    return torch.zeros_like(q)
