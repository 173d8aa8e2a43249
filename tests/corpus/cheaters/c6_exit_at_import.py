"""Ends with exit code 0 at import: success for a harness that trusts the code.

---
status: [CRASHED, IMPORT_ERROR, COMPILE_ERROR]
seen: KernelBench-Hard trusted_entrypoint.py; pygpubench
defence: no_sample_no_row
"""

import os

import torch

os._exit(0)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.zeros_like(q)
