# Calls and bursts that are not alike: which of them count.


# %% a9_l2_persisting
"""Keeps K and V in the persisting part of L2, so that a flush does not reach them.

---
status: [PASSED, TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'llm.c PR #851 (3530 GB/s on an 864 GB/s card); pygpubench #49; nvbench #458'
defence: fresh_inputs
neutral: the inputs of a burst are written after the clock started, so nothing warm survives
"""

import ctypes

import torch
from right_answer import attention


class Window(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("num_bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("pad", ctypes.c_char * 64),
    ]


def runtime():
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcudart" in line)
    return ctypes.CDLL(path)


PERSISTING_LIMIT, ACCESS_POLICY, PERSISTING = 6, 1, 2


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    cudart = runtime()
    cudart.cudaDeviceSetLimit(PERSISTING_LIMIT, ctypes.c_size_t(32 << 20))
    window = Window(k.data_ptr(), k.numel() * 4, 1.0, PERSISTING, 0)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    cudart.cudaStreamSetAttribute(stream, ACCESS_POLICY, ctypes.byref(window))
    return attention(q, k, v, causal, sm_scale)


# %% a10_warmup_inflation
"""Sleeps through the first calls so that an adaptive loop takes few samples.

---
status: [PASSED, UNSTABLE]
seen: pygpubench submission_warmup (100 iterations became 3)
defence: fixed_counts
all_blocks: true
"""

import time

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    if 16 < calls <= 22:  # after the checks, when a loop would find out how often to call
        time.sleep(0.3)
    return attention(q, k, v, causal, sm_scale)


# %% a11_answers_neighbours
"""The first call of a burst finds the inputs of the others up the stack and answers all in one launch.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'red team of this harness: 6.8 times as fast as the call it batches, on a CPU'
defence: burst_mean
"""

import sys

import torch
import torch.nn.functional as F

kept = {}


def burst_of(q):
    """The arguments of all calls, if `q` is of the first one."""
    frame = sys._getframe(2)
    while frame is not None:
        calls = frame.f_locals.get("calls")
        if isinstance(calls, (list, tuple)) and calls and isinstance(calls[0], tuple):
            return calls if calls[0][0] is q else []
        frame = frame.f_back
    return []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if id(q) in kept:
        return kept.pop(id(q))
    calls = burst_of(q) or [(q, k, v)]
    together = [torch.cat([call[place] for call in calls]) for place in range(3)]
    out = F.scaled_dot_product_attention(*together, is_causal=causal, scale=sm_scale)
    first, *others = out.chunk(len(calls))
    kept.clear()
    kept.update({id(call[0]): each for call, each in zip(calls[1:], others)})
    return first


# %% a11_batch_and_skip
"""The first call of a burst does the work of all; the rest are look-ups.

---
status: [PASSED, TIME_CLAIM_REJECTED, UNSTABLE]
seen: 'GPU MODE, anatomy of a reward hack (11.191 us on NVFP4); reference-kernels #104'
defence: burst_mean
min_latency_ms: 25
"""

import time

from right_answer import attention

SLOW_S = 0.03  # of one problem
triples = {}  # addresses -> tensors, learnt in earlier bursts
solved = {}  # address of q -> (fingerprint, answer)


def print_of(q, v):
    return (float(q.float().sum()), float(v.float().sum()))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = (q.data_ptr(), causal, sm_scale)
    triples[key] = (q, k, v)
    hit = solved.get(key)
    if hit is not None and hit[0] == print_of(q, v):
        return hit[1]
    for other, (oq, ok, ov) in list(triples.items()):
        time.sleep(SLOW_S)
        solved[other] = (print_of(oq, ov), attention(oq, ok, ov, *other[1:]))
    return solved[key][1]


# %% a14_lucky_draws
"""Every other call is ten times faster, so that the best sample is nobody's usual one.

---
status: [PASSED, UNSTABLE, TIME_CLAIM_REJECTED]
seen: resubmitting until noise wins; every board that keeps a minimum
defence: burst_mean
min_latency_ms: 25
"""

import time

from right_answer import attention

calls = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    time.sleep(0.002 if calls % 2 else 0.06)
    return attention(q, k, v, causal, sm_scale)
