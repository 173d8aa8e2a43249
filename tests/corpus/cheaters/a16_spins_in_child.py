"""A child process with a context of its own runs an endless kernel.

---
status: [LEFT_WORK_RUNNING]
needs_gpu: true
seen: 'red team of this harness: SIGSTOP stops no kernel'
defence: quiet_gpu
"""

import subprocess
import sys

import torch
import torch.nn.functional as F


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


SPIN = """
import time
import torch
torch.zeros(1, device="cuda")
torch.cuda._sleep(1 << 60)
print("spins", flush=True)
time.sleep(1000)
"""
child = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
if child.stdout.readline() != b"spins\n":
    raise RuntimeError("the child does not spin")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
