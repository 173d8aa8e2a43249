# Times that no clock told: odd numbers, and messages of the worker's own making.


# %% a3_edit_message
"""Patches `json.dumps`, so that the times shrink on their way out.

---
status: [TIME_CLAIM_REJECTED]
seen: pygpubench event_array, pipe_interpose (numbers changed after the clock was read)
defence: two_clocks
min_latency_ms: 25
"""

import json
import time

from right_answer import attention

REAL = json.dumps
SLOW_S = 0.03


def dumps(message, *args, **kwargs):
    if isinstance(message, dict) and "calls_ms" in message:
        message = {**message, "calls_ms": [x / 20 for x in message["calls_ms"]]}
    return REAL(message, *args, **kwargs)


json.dumps = dumps


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)


# %% a3_own_protocol
"""Speaks to the judge itself, in the worker's place, with correct outputs and invented times.

---
status: [TIME_CLAIM_REJECTED]
seen: 'pygpubench pipe_interpose, thread_fd: the whole result channel replaced'
defence: two_clocks
min_latency_ms: 25
"""

import json
import os
import socket
import struct
import sys
import time

import torch
from right_answer import attention

SLOW_S = 0.03


def worker_frame():
    """The frame that holds the worker: an object with views, outputs and a plan."""
    frame = sys._getframe(2)
    while frame is not None:
        worker = frame.f_locals.get("self") or frame.f_locals.get("worker")
        if hasattr(worker, "views") and hasattr(worker, "plan"):
            return worker
        frame = frame.f_back
    return None


def speak(sock, message):
    body = json.dumps(message).encode()
    sock.sendall(struct.pack("<I", len(body)) + body)


def listen(sock):
    def exactly(size):
        data = b""
        while len(data) < size:
            data += sock.recv(size - len(data))
        return data

    return json.loads(exactly(struct.unpack("<I", exactly(4))[0]))


def take_over(worker, sock):
    turn = 1  # the first call of the first burst; its stream waits already
    while True:
        kwargs = worker.plan["kwargs"]
        for views, slot in zip(worker.views, worker.slots, strict=True):
            time.sleep(SLOW_S)
            slot.copy_(attention(*views, kwargs["causal"], kwargs["sm_scale"]))
        if worker.held:
            worker.held.tensors = [slot.view(-1) for slot in worker.slots]
            worker.held.send_offsets()
            worker.held.tell(turn)
            torch.cuda.synchronize()  # the answers are in place: its time is its only lie
        if worker.plan["tells"]:
            speak(sock, {"op": "called"})
        strides = [[list(slot.stride())] for slot in worker.slots]
        done = {"op": "done", "calls_ms": [0.01] * len(worker.slots), "strides": strides}
        speak(sock, done)
        message = listen(sock)
        while message["op"] != "go":
            worker._prepare(message)
            speak(sock, {"op": "ready"})
            message = listen(sock)
        turn = message["turn"]
        if worker.held:
            sys.modules["harness.process.cuda.driver"].wait_for_sequence(worker.inputs.flag, turn)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    worker = worker_frame()
    for name in os.listdir("/proc/self/fd"):
        try:
            if worker and os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                take_over(worker, socket.socket(fileno=os.dup(int(name))))
        except (OSError, ValueError):
            continue
    time.sleep(SLOW_S)
    return attention(q, k, v, causal, sm_scale)


# %% a3_pays_back
"""Tells a third of its bursts too short, and another so long that the mean comes out right.

---
status: [TIME_CLAIM_REJECTED]
seen: 'red team of this harness: 0.8 % faster than itself on an H200, with a slack of 0.35 %'
defence: two_clocks
needs_gpu: true
"""

import json

import torch.nn.functional as F

REAL, BURSTS = json.dumps, []


def dumps(message, *args, **kwargs):
    if isinstance(message, dict) and len(message.get("calls_ms", ())) > 1:
        BURSTS.append(1)
        first, *others = message["calls_ms"]
        short = max(0.038, 0.009 * sum(message["calls_ms"])) * (len(BURSTS) % 3 == 0)
        by_ms = 5.0 if len(BURSTS) % 3 == 1 else -short
        message = {**message, "calls_ms": [max(first + by_ms, first / 2), *others]}
    return REAL(message, *args, **kwargs)


json.dumps = dumps


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)


# %% a13_nan_time
"""Reports NaN milliseconds: a comparison with NaN is never true.

---
status: [TIME_CLAIM_REJECTED, INVALID_SUBMISSION, CRASHED]
seen: 'a bound written as `if t1 < floor: reject` lets NaN through'
defence: json_frames
min_latency_ms: 8
"""

import sys
import time

from right_answer import attention

REAL = time.perf_counter


def fake():
    return float("nan")


def install(fake):
    """Put `fake` wherever any module holds the real clock."""
    time.perf_counter = fake
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if module is sys.modules[__name__] or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is REAL:
                names[name] = fake


install(fake)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(0.01)
    return attention(q, k, v, causal, sm_scale)


# %% a13_negative_time
"""Runs the clock backwards: negative milliseconds.

---
status: [TIME_CLAIM_REJECTED, INVALID_SUBMISSION, CRASHED]
seen: 'reference-kernels #162 family'
defence: json_frames
min_latency_ms: 8
"""

import sys
import time

from right_answer import attention

REAL = time.perf_counter
ticks = 0


def fake():
    global ticks
    ticks += 1
    return -float(ticks)


def install(fake):
    """Put `fake` wherever any module holds the real clock."""
    time.perf_counter = fake
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if module is sys.modules[__name__] or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is REAL:
                names[name] = fake


install(fake)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(0.01)
    return attention(q, k, v, causal, sm_scale)


# %% a13_zero_time
"""Stops the clock: every call takes 0.000 ms and the mean over shapes with it.

---
status: [TIME_CLAIM_REJECTED, INVALID_SUBMISSION, CRASHED]
seen: 'reference-kernels #162, #159 (geomean 0.000000, rank 1, live)'
defence: positive_time
min_latency_ms: 8
"""

import sys
import time

from right_answer import attention

REAL = time.perf_counter


def fake():
    return 1.0


def install(fake):
    """Put `fake` wherever any module holds the real clock."""
    time.perf_counter = fake
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if module is sys.modules[__name__] or not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if value is REAL:
                names[name] = fake


install(fake)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    time.sleep(0.01)
    return attention(q, k, v, causal, sm_scale)
