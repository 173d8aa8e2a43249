"""Leaves an endless kernel behind and stops its own process, so that nobody can lock it.

---
status: [LEFT_WORK_RUNNING, TIMED_OUT]
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
import os
import signal
import torch
torch.zeros(1, device="cuda")
torch.cuda._sleep(1 << 60)
print("spins", flush=True)
while True:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
child = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
if child.stdout.readline() != b"spins\n":
    raise RuntimeError("the child does not spin")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
