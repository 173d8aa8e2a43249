# Work outside the stretch that is timed: another stream, a thread, before or afterwards.


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
