"""Zeroes q, k and v so that a reference computed afterwards is zero too.

---
status: [INPUT_MUTATED, INCORRECT]
seen: 'KernelBench PR #82 zero_out_kernel.py; kernelbot cheat-input.py'
defence: separate_process
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for tensor in (q, k, v):
        tensor.zero_()
    return torch.zeros_like(q)
