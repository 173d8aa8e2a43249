# Work outside what is timed: another stream, a thread, before, afterwards, or in calls that do not count.


# %% a1_side_stream
"""Launches the work on a stream of its own and never joins it.

---
status: [INCORRECT, NONFINITE]
needs_gpu: true
seen: 'KernelBench PR #82 non_default_stream_kernel.py; SOL-ExecBench hack_stream_injection'
defence: output_copied
"""

import torch
from right_answer import attention

SIDE = torch.cuda.Stream()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    SIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(SIDE):
        torch.cuda._sleep(4_000_000)  # a slow kernel, about two milliseconds
        return attention(q, k, v, causal, sm_scale)


# %% a2_stream_swap
"""Makes another, idle stream the current one, so that events taken by default land there.

---
status: [TIME_CLAIM_REJECTED, BAD_OUTPUT, INCORRECT, NONFINITE]
needs_gpu: true
seen: 'a variant of KernelBench PR #82 non_default_stream_kernel.py'
defence: explicit_stream
min_latency_ms: 1.0
"""

import torch
from right_answer import attention

torch.cuda.init()
IDLE = torch.cuda.Stream()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    torch.cuda._sleep(4_000_000)  # a slow kernel on the old stream, about two milliseconds
    out = attention(q, k, v, causal, sm_scale)
    torch.cuda.set_stream(IDLE)
    return out


# %% a5_sync_noop
"""Turns every synchronize into a no-op and leaves a slow kernel running.

---
status: [INCORRECT, NONFINITE, TIME_CLAIM_REJECTED, CRASHED]
needs_gpu: true
seen: 'terminal-bench #1010 (block_until_ready patched: 84x)'
defence: output_copied
"""

import torch
from right_answer import attention


def nothing(*args, **kwargs):
    return None


torch.cuda.synchronize = nothing
for owner in (torch.cuda.Stream, torch.cuda.Event):
    owner.synchronize = nothing


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(4_000_000)  # about two milliseconds
        return attention(q, k, v, causal, sm_scale)


# %% a8_head_start_joined
"""Launches on a joined side stream, hoping to start before the start event does.

---
status: [PASSED, TIME_CLAIM_REJECTED, INCORRECT, NONFINITE]
needs_gpu: true
seen: 'pygpubench README: flush, then start event without a sync'
defence: idle_before_start
min_latency_ms: 0.9
"""

import torch
from right_answer import attention

torch.cuda.init()
SIDE = torch.cuda.Stream()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    with torch.cuda.stream(SIDE):  # does not wait for the start event
        torch.cuda._sleep(2_000_000)
        out = attention(q, k, v, causal, sm_scale)
    torch.cuda.current_stream().wait_stream(SIDE)
    return out


# %% a8_spinner
"""A thread watches the input buffers and starts as soon as they change, before the clock does.

---
status: [TIME_CLAIM_REJECTED, PASSED]
seen: pygpubench README, window of opportunity
defence: idle_before_start
min_latency_ms: 15
"""

import _thread
import time

import torch
from right_answer import attention

SLOW_S = 0.03
jobs = {}  # address of q -> (q, k, v, causal, sm_scale)
ready = {}  # address of q -> (copies of the inputs, answer)


def watch():
    while True:
        for key, job in list(jobs.items()):
            seen = ready.get(key)
            if seen is not None and torch.equal(seen[0], job[0]) and torch.equal(seen[1], job[2]):
                continue
            copies = tuple(tensor.clone() for tensor in job[:3])
            time.sleep(SLOW_S)  # stands for the work
            ready[key] = (copies[0], copies[2], copies[1], attention(*copies, *job[3:]))
        time.sleep(0.0005)


_thread.start_new_thread(watch, ())


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = q.data_ptr()
    jobs[key] = (q, k, v, causal, sm_scale)
    seen = ready.get(key)
    while seen is None or not (torch.equal(seen[0], q) and torch.equal(seen[1], v)):
        time.sleep(0.0005)
        seen = ready.get(key)
    return attention(q, k, v, causal, sm_scale)


# %% a12_deferred_write
"""Returns a buffer that the next call fills.

---
status: [INCORRECT]
seen: 'reference-kernels #104 (fingerprint at return against after sync)'
defence: output_copied
"""

import torch
from right_answer import attention

late = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    while late:
        out, job = late.pop()
        out.copy_(attention(*job))
    out = torch.zeros_like(q)
    late.append((out, (q.clone(), k.clone(), v.clone(), causal, sm_scale)))
    return out


# %% a9_l2_persisting
"""Keeps K and V in the persisting part of L2, so that a flush does not reach them.

---
status: [PASSED, TIME_CLAIM_REJECTED, CRASHED]
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


# %% a17_overlapping_calls
"""Each call, on a stream of its own, waits for the last but one only: the next fills its tail.

---
status: [SLOWER_ALONE, TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'found in this harness by a reader: PASSED at 0.80 of its honest twin''s time on one H200'
defence: two_clocks
"""

import sys

import torch
from right_answer import attention

HOUSE = next(m for m in list(sys.modules.values()) if {"gpu_burst", "Worker"} <= set(vars(m)))
BURST, SIDES = HOUSE.gpu_burst, [torch.cuda.Stream() for _ in range(8)]
ENDS, told = [torch.cuda.Event() for _ in range(64)], {"calls": 0, "index": 0, "start": None}


def gpu_burst(function, calls, kwargs, keep, events, done):
    told.update(calls=len(calls), index=0, start=events[0])
    try:
        return BURST(function, calls, kwargs, keep, events, done)
    finally:
        told["calls"] = 0


HOUSE.gpu_burst = gpu_burst


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not told["calls"]:
        return attention(q, k, v, causal, sm_scale)
    index = told["index"]
    told["index"] = index + 1
    side = SIDES[index % len(SIDES)]
    side.wait_event(told["start"] if index < 2 else ENDS[index - 2])
    with torch.cuda.stream(side):
        out = attention(q, k, v, causal, sm_scale)
        ENDS[index].record(side)
    torch.cuda.current_stream().wait_event(ENDS[index])
    return out


# %% c26_heats_before_ready
"""Multiplies matrices for 300 ms before it says that it is ready: who comes next meets a hot chip.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: 'found in this harness by a reader: baseline and rivals were refused on one H200'
defence: two_clocks
"""

import sys
import time

import torch
from right_answer import attention

WORKER = next(m for m in list(sys.modules.values()) if {"gpu_burst", "Worker"} <= set(vars(m))).Worker
PREPARE = WORKER._prepare
LEFT, RIGHT = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))


def prepare(worker, message):
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        torch.mm(LEFT, RIGHT)
        torch.cuda.current_stream().synchronize()
    PREPARE(worker, message)


WORKER._prepare = prepare


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
