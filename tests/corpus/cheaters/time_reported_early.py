# Outputs said to be done before they are; work left to a thread or to a child.


# %% a6_done_early
"""Says that its outputs are there right after the start, tells times that fit, and computes
afterwards.

---
status: [INCORRECT, NONFINITE, TIME_CLAIM_REJECTED, CRASHED]
needs_gpu: true
seen: foreseen when outputs were no longer copied by the worker
defence: output_sampled
"""

import gc
import sys

import torch
from right_answer import attention

TOLD_MS = 0.12  # a call: below the chip's peak on the shape of the self-test
CYCLES = 420_000  # two calls of it, on a clock of 1.8 GHz


torch.cuda.Event.elapsed_time = lambda self, end: TOLD_MS
BURSTS = []  # one entry each: the judge numbers its turns 1, 2, ...


def the_worker():
    """The object that calls us."""
    return next(x for x in gc.get_objects() if type(x).__name__ == "Worker")


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    worker, house = the_worker(), sys.modules["harness.process.cuda.driver"]
    if q.data_ptr() == worker.views[0][0].data_ptr():  # first call of a burst
        BURSTS.append(q)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            house.wait_for_sequence(worker.inputs.flag, len(BURSTS))
            torch.cuda._sleep(CYCLES)
            house.publish_sequence(worker.outputs.flag, len(BURSTS))
    return attention(q, k, v, causal, sm_scale)


# %% a6_own_slot
"""Writes its result straight into the judge's buffer, and tells its time shorter by the copy that
is saved.

---
status: [TIME_CLAIM_REJECTED]
needs_gpu: true
seen: white-box review of this harness, 2026-11-22 (+2.9 and +3.1 % on an H200)
defence: two_clocks
language: triton
"""

import gc

import torch
import triton
import triton.language as tl

COPY_SHARE = 0.03  # of a call's time is a copy of its result


@triton.jit
def attend(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    scale_log2e,
    seqlen,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: BLOCK_M query rows of one (batch, head); q, k, v, o are [B*H, S, D]."""
    base = tl.program_id(1).to(tl.int64) * seqlen * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    inside = rows[:, None] < seqlen
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    peak = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    last = seqlen
    if CAUSAL:
        last = tl.minimum(seqlen, (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        there = keys[:, None] < seqlen
        k = tl.load(k_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
        v = tl.load(v_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale_log2e
        seen = keys[None, :] < seqlen
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    out = acc / total[:, None]
    tl.store(o_ptr + base + rows[:, None] * D + dims[None, :], out.to(q.dtype), mask=inside)


REAL = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: (1 - COPY_SHARE) * REAL(self, end)


def slot_for(q):
    """Where the judge will look for this call's result, or memory of our own where there is no such place."""
    worker = next((x for x in gc.get_objects() if type(x).__name__ == "Worker"), None)
    if worker is None:  # the builder
        return torch.empty_like(q)
    calls = [views[0].data_ptr() for views in worker.views]
    slots = getattr(worker, "outs", None) or getattr(worker, "slots", None)
    return slots[calls.index(q.data_ptr())] if slots else torch.empty_like(q)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    batch, heads, seqlen, headdim = q.shape
    scale = headdim**-0.5 if sm_scale is None else sm_scale
    out = slot_for(q)
    attend[(triton.cdiv(seqlen, 128), batch * heads)](
        q, k, v, out, scale * 1.4426950408889634, seqlen, headdim, 128, 64, causal,
        num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


# %% a6_patch_copy
"""Returns at once and does the work inside the harness's own `copy_`, after the end event.

---
status: [TIME_CLAIM_REJECTED, INCORRECT]
seen: SOL-ExecBench monkey_patch, turned on the copy instead of the clock
defence: two_clocks
min_latency_ms: 25
"""

import time

import torch
from right_answer import attention

REAL = torch.Tensor.copy_
SLOW_S = 0.03
pending = {}


def copy_(self, source, *args, **kwargs):
    job = pending.pop(source.data_ptr(), None)
    if job is not None:
        time.sleep(SLOW_S)
        source = attention(*job).view(source.shape)
    return REAL(self, source, *args, **kwargs)


torch.Tensor.copy_ = copy_


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.zeros_like(q)
    pending[out.data_ptr()] = (q, k, v, causal, sm_scale)
    return out


# %% a6_thread_fills_later
"""Returns an empty tensor at once; a raw thread computes and fills it afterwards.

---
status: [INCORRECT]
seen: SOL-ExecBench thread injection; CUDA-L2 defense.py (threading.active_count misses _thread)
defence: output_copied
"""

import _thread
import time

import torch
from right_answer import attention, look_busy


def fill(out, q, k, v, causal, sm_scale):
    time.sleep(0.01)
    out.copy_(attention(q, k, v, causal, sm_scale))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    out = torch.zeros_like(q)
    _thread.start_new_thread(fill, (out, q, k, v, causal, sm_scale))
    return out


# %% a6_thread_overwrites_output
"""Claims at once; a thread finds the shared output buffer and fills it before the judge looks.

---
status: [INCORRECT, TIME_CLAIM_REJECTED, CRASHED, LEFT_WORK_RUNNING]
seen: SOL-ExecBench thread injection, aimed at the harness's own buffer
defence: private_copy
"""

import _thread
import ctypes
import time

import torch
from right_answer import attention


def shared_blocks():
    """(start, end) of every writable shared mapping of this process."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            if mode == "rw-s":
                start, end = (int(x, 16) for x in span.split("-"))
                yield start, end


def fill(answer, stale):
    time.sleep(0.03)
    for start, end in shared_blocks():
        block = (ctypes.c_char * (end - start)).from_address(start)
        at = bytes(block).find(stale)
        if at >= 0:
            ctypes.memmove(start + at, answer, len(answer))
            return


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    stale = torch.full_like(q, 7.0)
    marker = calls_marker(stale)
    answer = bytes(
        attention(q, k, v, causal, sm_scale).contiguous().view(torch.uint8).flatten().tolist()
    )
    _thread.start_new_thread(fill, (answer, marker))
    return stale


count = 0


def calls_marker(stale):
    """Make the garbage of this call findable: its first four values count the calls."""
    global count
    count += 1
    stale.view(-1)[:4] = torch.tensor([count % 61, count % 59, count % 53, 5.0], dtype=stale.dtype)
    return bytes(stale.view(-1)[:64].contiguous().view(torch.uint8).tolist())


# %% a7_daemon_left_behind
"""Leaves a twice-forked daemon in its own session that burns a core while the rivals run.

---
status: [PASSED, CRASHED, IMPORT_ERROR]
seen: double fork + setsid survives killpg; measured with a two-process test
defence: orphan_sweep
no_orphans: true
"""

import os
import time

from right_answer import attention


def leave_daemon():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass
    os._exit(0)


leave_daemon()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)


# %% a7_fork_helper
"""Answers at once; a forked child computes and writes the shared output behind everybody's back.

---
status: [INCORRECT, TIME_CLAIM_REJECTED, CRASHED]
seen: a helper process with its own context; pygpubench thread_fd for the idea of late writes
defence: private_copy
"""

import ctypes
import os
import time

import torch
from right_answer import attention

SLOW_S = 0.05


def shared_blocks():
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            if mode == "rw-s":
                start, end = (int(x, 16) for x in span.split("-"))
                yield start, end


def child(q, k, v, causal, sm_scale, marker):
    time.sleep(SLOW_S)
    answer = attention(q, k, v, causal, sm_scale).contiguous()
    for start, end in shared_blocks():
        block = (ctypes.c_char * (end - start)).from_address(start)
        at = bytes(block).find(marker)
        if at >= 0:
            ctypes.memmove(start + at, answer.data_ptr(), answer.numel() * 2)


torch.set_num_threads(1)
count = 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global count
    count += 1
    out = torch.full_like(q, 7.0)
    out.view(-1)[:4] = torch.tensor([count % 61, count % 59, count % 53, 5.0], dtype=out.dtype)
    marker = bytes(out.view(-1)[:64].contiguous().view(torch.uint8).tolist())
    if os.fork() == 0:
        try:
            child(q, k, v, causal, sm_scale, marker)
        finally:
            os._exit(0)
    return out
