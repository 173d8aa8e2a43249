"""Calls torch's scaled_dot_product_attention and enters it as a kernel of its own.

---
status: [PASSED]
needs_gpu: true
seen: KernelBench, KernelBench-Hard wrappers
defence: class_of_work
work_class: [library, mixed]
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale
    )
