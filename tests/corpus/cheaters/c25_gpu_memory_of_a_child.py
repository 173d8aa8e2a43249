"""Lets a child process take the GPU's memory, because only the worker's own is watched.

---
status: [OUT_OF_MEMORY]
needs_gpu: true
seen: limits by process instead of by tree
defence: memory_limit
"""

import subprocess
import sys

import torch
from right_answer import attention

HOARD = """
import torch
kept = [torch.empty(2 << 30, dtype=torch.uint8, device="cuda") for _ in range(15)]
print("full", flush=True)
input()
"""
child = subprocess.Popen(
    [sys.executable, "-c", HOARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
child.stdout.readline()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
